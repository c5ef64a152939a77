complete -c rdrecv -l wait -d 'Seconds to wait for a sender [default: without end]' -r
complete -c rdrecv -l key-file -d 'Read KEY from the first line of FILE instead of taking it from the arguments' -r -F
complete -c rdrecv -l key-fd -d 'Read KEY from the first line of the open file descriptor FD instead of taking it from the arguments' -r
complete -c rdrecv -l transport -d 'Which transport carries the data' -r -f -a "auto\t'RDMA where both ends have an adapter that reaches the other, else TCP'
rdma\t'RDMA only; fail where there is none'
prefer-rdma\t'RDMA, software devices (rxe, siw) included, else TCP'
tcp\t'TCP only'"
complete -c rdrecv -l encrypt -d 'Whether the data is encrypted' -r -f -a "auto\t'On TCP between different hosts; not on RDMA'
always\t'On every transport'
never\t'On none; data is still checked against accidents'"
complete -c rdrecv -l compress -d 'How the sender compresses the data; ignored by a receiver' -r -f -a "off\t'Send data as it is'
auto\t'LZ4 or Zstandard, as strong as the line leaves time for; data as it is where that goes faster or does not shrink'
lz4\t'LZ4'
zstd\t'Zstandard, level 1'"
complete -c rdrecv -l lanes -d 'Connections to spread the data over, 1 to 16; the lower of the two ends\' values applies [default: 2 on TCP and software RDMA, 1 on RDMA adapters]' -r
complete -c rdrecv -l buffer -d 'Memory for data in flight at this end; a larger buffer smooths a source or sink that works in bursts' -r
complete -c rdrecv -l chunk -d 'Largest chunk, the unit that is sent, checked and sent again: 4K to 1M; the lower of the two ends\' values applies' -r
complete -c rdrecv -l port-range -d 'Ports that the listening end may use: for RDMA, and for TCP where no port is given' -r
complete -c rdrecv -l reconnect -d 'Seconds to wait for a lost connection to come back, 0 to give up at once; the lower of the two ends\' values applies' -r
complete -c rdrecv -l bwlimit -d 'Most bytes a second that the sender reads, such as 200M; ignored by a receiver' -r
complete -c rdrecv -l json -d 'Report as JSON, one object per line, to FILE, or to standard output if that carries no data' -r -F
complete -c rdrecv -l json-fd -d 'Report as JSON to the open file descriptor FD' -r
complete -c rdrecv -l report -d 'Write a page to FILE.html, to be looked at: rate and what limited over time, events, and what to change; also when it fails' -r -F
complete -c rdrecv -l color -d 'When to use colours' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c rdrecv -s v -l verbose -d 'Print the route of the data, how files were read and written, what limited the transfer, and the bandwidth'
complete -c rdrecv -s q -l quiet -d 'Print errors only, even with -v or --progress'
complete -c rdrecv -l progress -d 'Show progress and what limits it: as a bar on a terminal, which is the default there, else as a line every 5 seconds'
complete -c rdrecv -l show-config -d 'Print what each option would be set to, and where that is from; do nothing else'
complete -c rdrecv -s h -l help -d 'Print help (see more with \'--help\')'
complete -c rdrecv -s V -l version -d 'Print version'
