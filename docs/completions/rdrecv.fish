complete -c rdrecv -l wait -d 'Seconds to wait for a sender [default: without end]' -r
complete -c rdrecv -l key-file -d 'Read KEY from the first line of FILE; KEY is then not among the arguments' -r -F
complete -c rdrecv -l key-fd -d 'Read KEY from the first line of the open file descriptor FD; KEY is then not among the arguments' -r
complete -c rdrecv -l transport -d 'Which transport carries the data' -r -f -a "auto\t'RDMA where both ends have an adapter that reaches the other, else TCP'
rdma\t'RDMA only; fail where there is none'
prefer-rdma\t'RDMA, software devices (rxe, siw) included, else TCP'
tcp\t'TCP only'"
complete -c rdrecv -l encrypt -d 'Whether the data is encrypted' -r -f -a "auto\t'On TCP between different hosts; not on RDMA'
always\t'On every transport'
never\t'On none; data is still checked against accidents'"
complete -c rdrecv -l compress -d 'How the sender compresses the data; without effect at a receiver' -r -f -a "off\t'Send data as it is'
auto\t'LZ4 while the link is the bottleneck and the data shrinks'
lz4\t'LZ4'
zstd\t'Zstandard, level 1'"
complete -c rdrecv -l lanes -d 'Connections to spread the data over, 1 to 16; the smaller wish counts [default: 2 on TCP and software RDMA, 1 on RDMA adapters]' -r
complete -c rdrecv -l buffer -d 'Memory for data on its way at this end; more of it smooths a source or sink that works in bursts' -r
complete -c rdrecv -l chunk -d 'Most bytes of a chunk, the unit that is sent, checked and repeated: 4K to 1M; the smaller wish counts' -r
complete -c rdrecv -l port-range -d 'Ports that the listening end may take: for RDMA, and for TCP where none is given' -r
complete -c rdrecv -l reconnect -d 'Seconds to wait for a lost link to come back; 0 gives up at once. The smaller wish of both ends counts' -r
complete -c rdrecv -l bwlimit -d 'Most bytes a second that the sender reads, such as 200M; without effect at a receiver' -r
complete -c rdrecv -l json -d 'Report as JSON, an object a line, to FILE or else to standard output where that carries no data' -r -F
complete -c rdrecv -l json-fd -d 'The same, to the open file descriptor FD' -r
complete -c rdrecv -l color -d 'When to use colours' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c rdrecv -s v -l verbose -d 'Print which way the data goes, how files were read and written, what limited, and the bandwidth'
complete -c rdrecv -s q -l quiet -d 'Print errors only, also with -v and --progress'
complete -c rdrecv -l progress -d 'Show progress and what limits it: a bar on a terminal, where that is the default, else a line every 5 seconds'
complete -c rdrecv -s h -l help -d 'Print help (see more with \'--help\')'
complete -c rdrecv -s V -l version -d 'Print version'
