complete -c rdpipe -s p -d 'Listen on PORT, or one of the next that is free, instead of a port of the system\'s choice' -r
complete -c rdpipe -s H -d 'What the hosts next to this one call it: they connect to it by NAME, instead of it to them' -r
complete -c rdpipe -l shell -d 'The shell, which is given -c and COMMAND' -r
complete -c rdpipe -l slow -d 'A host that is slow is waited for by the others (hold), or dropped once it has held them up for --stall (drop), and has failed then' -r -f -a "hold\t'The others wait for it'
drop\t'It is dropped'"
complete -c rdpipe -l spool -d 'Let each host fall behind by SIZE on its disk (in TMPDIR there, or /var/tmp) before it is slow' -r
complete -c rdpipe -l stall -d 'Pass over a host that has stood still for so many seconds; with --slow=hold, one that does not answer either' -r
complete -c rdpipe -l rsh -d 'The command that runs a program on a host, instead of ssh; RDCP_RSH in the environment sets it too' -r
complete -c rdpipe -l launcher -d 'What runs a program on a host: ssh, slurm (srun in an allocation, which copies to several of its nodes take by themselves), or a command with %h for the host, and %c for what is run there if that is not to be its last word, such as \'mpirun -q -n 1 --host %h sh -c %c\'' -r
complete -c rdpipe -l parallel -d 'Log in to so many hosts at once' -r
complete -c rdpipe -s P -l ssh-port -d 'ssh\'s port' -r
complete -c rdpipe -s i -d 'ssh\'s key; may be repeated' -r
complete -c rdpipe -s J -d 'The host that ssh goes through' -r
complete -c rdpipe -s F -d 'ssh\'s configuration' -r
complete -c rdpipe -s o -d 'An option of ssh\'s, such as Compression=no; may be repeated' -r
complete -c rdpipe -l agent -d 'The agent\'s program on other hosts [default: rdma-pipe-agent]' -r
complete -c rdpipe -l via -d 'The address or interface, of either end, that the data is to go by' -r
complete -c rdpipe -l transport -d 'Which transport carries the data' -r -f -a "auto\t'RDMA where both ends have an adapter that reaches the other, else TCP'
rdma\t'RDMA only; fail where there is none'
prefer-rdma\t'RDMA, software devices (rxe, siw) included, else TCP'
tcp\t'TCP only'"
complete -c rdpipe -l encrypt -d 'Whether the data is encrypted' -r -f -a "auto\t'On TCP between different hosts; not on RDMA'
always\t'On every transport'
never\t'On none; data is still checked against accidents'"
complete -c rdpipe -l compress -d 'How the sender compresses the data; ignored by a receiver' -r -f -a "off\t'Send data as it is'
auto\t'LZ4 or Zstandard, as strong as the line leaves time for; data as it is where that goes faster or does not shrink'
lz4\t'LZ4'
zstd\t'Zstandard, level 1'"
complete -c rdpipe -l lanes -d 'Connections to spread the data over, 1 to 16; the lower of the two ends\' values applies [default: 2 on TCP and software RDMA, 1 on RDMA adapters]' -r
complete -c rdpipe -l buffer -d 'Memory for data in flight at this end; a larger buffer smooths a source or sink that works in bursts' -r
complete -c rdpipe -l chunk -d 'Largest chunk, the unit that is sent, checked and sent again: 4K to 1M; the lower of the two ends\' values applies' -r
complete -c rdpipe -l port-range -d 'Ports that the listening end may use: for RDMA, and for TCP where no port is given' -r
complete -c rdpipe -l reconnect -d 'Seconds to wait for a lost connection to come back, 0 to give up at once; the lower of the two ends\' values applies' -r
complete -c rdpipe -l bwlimit -d 'Most bytes a second that the sender reads, such as 200M; ignored by a receiver' -r
complete -c rdpipe -l json -d 'Report as JSON, one object per line, to FILE, or to standard output if that carries no data' -r -F
complete -c rdpipe -l json-fd -d 'Report as JSON to the open file descriptor FD' -r
complete -c rdpipe -l report -d 'Write a page to FILE.html, to be looked at: rate and what limited over time, events, and what to change; also when it fails' -r -F
complete -c rdpipe -l color -d 'When to use colours' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c rdpipe -s n -l dry-run -d 'Say what would be run where, and which connections be made, and start nothing'
complete -c rdpipe -l no-label -d 'Leave standard error as it comes; else its lines are labelled where there is more than one host'
complete -c rdpipe -l no-bootstrap -d 'Fail where a host has no agent, instead of copying this one to ~/.cache/rdma-pipe there'
complete -c rdpipe -l relay -d 'Send the data through the connections that ssh has made, by way of this host'
complete -c rdpipe -s v -l verbose -d 'Print the route of the data, how files were read and written, what limited the transfer, and the bandwidth'
complete -c rdpipe -s q -l quiet -d 'Print errors only, even with -v or --progress'
complete -c rdpipe -l progress -d 'Show progress and what limits it: as a bar on a terminal, which is the default there, else as a line every 5 seconds'
complete -c rdpipe -l show-config -d 'Print what each option would be set to, and where that is from; do nothing else'
complete -c rdpipe -s h -l help -d 'Print help (see more with \'--help\')'
complete -c rdpipe -s V -l version -d 'Print version'
