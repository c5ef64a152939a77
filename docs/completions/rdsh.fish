complete -c rdsh -s B -d 'The interface from which ssh connects' -r
complete -c rdsh -s b -d 'The address from which ssh connects' -r
complete -c rdsh -s c -d 'Ciphers of ssh\'s own connection' -r
complete -c rdsh -s D -d 'Forward ports by SOCKS: left to ssh' -r
complete -c rdsh -s E -d 'Where ssh writes its log' -r
complete -c rdsh -s e -d 'The escape character of a terminal' -r
complete -c rdsh -s F -d 'ssh\'s configuration' -r
complete -c rdsh -s I -d 'A PKCS#11 library that has keys' -r
complete -c rdsh -s i -d 'ssh\'s key; may be repeated' -r
complete -c rdsh -s J -d 'The host that ssh goes through' -r
complete -c rdsh -s L -d 'Forward a port from here: left to ssh' -r
complete -c rdsh -s l -d 'The user to log in as' -r
complete -c rdsh -s m -d 'Checksums of ssh\'s own connection' -r
complete -c rdsh -s O -d 'Control a shared connection: left to ssh' -r
complete -c rdsh -s o -d 'An option of ssh\'s, such as Compression=no; may be repeated' -r
complete -c rdsh -s P -d 'A tag for ssh\'s configuration' -r
complete -c rdsh -s p -d 'ssh\'s port' -r
complete -c rdsh -s Q -d 'Print which algorithms there are: left to ssh' -r
complete -c rdsh -s R -d 'Forward a port from there: left to ssh' -r
complete -c rdsh -s S -d 'The socket of a shared connection' -r
complete -c rdsh -s W -d 'Connect to a port from there: left to ssh' -r
complete -c rdsh -s w -d 'Make a tunnel: left to ssh' -r
complete -c rdsh -l rsh -d 'The command that is ssh; RDCP_RSH in the environment sets it too' -r
complete -c rdsh -l agent -d 'The agent\'s program on the host [default: rdma-pipe-agent]' -r
complete -c rdsh -l via -d 'The address or interface, of either end, that the data is to go by' -r
complete -c rdsh -l transport -d 'Which transport carries the data' -r -f -a "auto\t'RDMA where both ends have an adapter that reaches the other, else TCP'
rdma\t'RDMA only; fail where there is none'
prefer-rdma\t'RDMA, software devices (rxe, siw) included, else TCP'
tcp\t'TCP only'"
complete -c rdsh -l encrypt -d 'Whether the data is encrypted' -r -f -a "auto\t'On TCP between different hosts; not on RDMA'
always\t'On every transport'
never\t'On none; data is still checked against accidents'"
complete -c rdsh -l compress -d 'How the sender compresses the data; ignored by a receiver' -r -f -a "off\t'Send data as it is'
auto\t'LZ4 or Zstandard, as strong as the line leaves time for; data as it is where that goes faster or does not shrink'
lz4\t'LZ4'
zstd\t'Zstandard, level 1'"
complete -c rdsh -l lanes -d 'Connections to spread the data over, 1 to 16; the lower of the two ends\' values applies [default: 2 on TCP and software RDMA, 1 on RDMA adapters]' -r
complete -c rdsh -l buffer -d 'Memory for data in flight at this end; a larger buffer smooths a source or sink that works in bursts' -r
complete -c rdsh -l chunk -d 'Largest chunk, the unit that is sent, checked and sent again: 4K to 1M; the lower of the two ends\' values applies' -r
complete -c rdsh -l port-range -d 'Ports that the listening end may use: for RDMA, and for TCP where no port is given' -r
complete -c rdsh -l reconnect -d 'Seconds to wait for a lost connection to come back, 0 to give up at once; the lower of the two ends\' values applies' -r
complete -c rdsh -l bwlimit -d 'Most bytes a second that the sender reads, such as 200M; ignored by a receiver' -r
complete -c rdsh -l color -d 'When to use colours' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c rdsh -s 4 -d 'Reach the host by IPv4 only'
complete -c rdsh -s 6 -d 'Reach the host by IPv6 only'
complete -c rdsh -s A -d 'Forward ssh\'s agent of keys'
complete -c rdsh -s a -d 'Do not forward ssh\'s agent of keys'
complete -c rdsh -s C -d 'Compress what goes through ssh itself; for the data see --compress'
complete -c rdsh -s f -d 'Go to the background after the login: left to ssh'
complete -c rdsh -s G -d 'Print the configuration: left to ssh'
complete -c rdsh -s g -d 'Let other hosts use forwarded ports: left to ssh'
complete -c rdsh -s K -d 'Log in by GSSAPI, and forward its credentials'
complete -c rdsh -s k -d 'Do not forward credentials of GSSAPI'
complete -c rdsh -s M -d 'Be the master of a shared connection'
complete -c rdsh -s N -d 'Run no command: left to ssh'
complete -c rdsh -s n -d 'Have /dev/null as standard input'
complete -c rdsh -s q -d 'Have ssh print errors only'
complete -c rdsh -s s -d 'Run a subsystem: left to ssh'
complete -c rdsh -s T -d 'Have no terminal there, which is so with COMMAND anyway'
complete -c rdsh -s t -d 'Have a terminal there: left to ssh'
complete -c rdsh -s V -d 'Print ssh\'s version'
complete -c rdsh -s v -d 'Say what is done, and what is left to ssh; ssh says more with -vv and -vvv'
complete -c rdsh -s X -d 'Forward X11'
complete -c rdsh -s x -d 'Do not forward X11'
complete -c rdsh -s Y -d 'Forward X11 and trust it'
complete -c rdsh -s y -d 'Have ssh log to syslog'
complete -c rdsh -s 1 -d ''
complete -c rdsh -s 2 -d ''
complete -c rdsh -l version -d 'Print the version'
complete -c rdsh -l no-bootstrap -d 'Leave it to ssh where a host has no agent, instead of copying this one to ~/.cache/rdma-pipe there'
complete -c rdsh -l relay -d 'Send the data through the connection that ssh has made'
complete -c rdsh -l show-config -d 'Print what each option would be set to, and where that is from; do nothing else'
complete -c rdsh -s h -l help -d 'Print help (see more with \'--help\')'
