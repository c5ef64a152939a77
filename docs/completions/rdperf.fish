complete -c rdperf -l size -d 'Bytes of each message, 1 to 8M [default: 2 for latency, 64K for bandwidth, 64 for ping; with disk 4K, 64K and 1M]' -r
complete -c rdperf -l iterations -d 'Messages of each length, instead of a time [default of ping: 10]' -r
complete -c rdperf -l duration -d 'Seconds for each length, and for each number of connections, block size or depth' -r
complete -c rdperf -l qp -d 'Connections: queue pairs, or TCP streams; with qps, the most of them [default: 1; with limits 2 on TCP; with qps what the devices allow, at most 4096, TCP 1024]' -r
complete -c rdperf -l depth -d 'Messages, or blocks of storage, on their way; messages on each connection [default: 128; with qps 1; with disk 1, 8 and 32]' -r
complete -c rdperf -l transport -d 'Which transport carries the messages' -r -f -a "auto\t'RDMA where both ends have an adapter that reaches the other, else TCP'
rdma\t'RDMA only; fail where there is none'
prefer-rdma\t'RDMA, software devices (rxe, siw) included, else TCP'
tcp\t'TCP only'"
complete -c rdperf -l json -d 'Write one JSON object, to FILE or else to standard output instead of the tables' -r -F
complete -c rdperf -l plot -d 'Draw what was measured, as SVG' -r -F
complete -c rdperf -l compare -d 'A report of --json to draw beside it; may be repeated. Without anything to measure, only these are drawn' -r -F
complete -c rdperf -l color -d 'When to use colours' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c rdperf -l source -d 'What limits reads: a file, or a directory, in which it makes and removes one of its own' -r -F
complete -c rdperf -l port-range -d 'Ports that the listening end may take: for RDMA, and for TCP where none is given' -r
complete -c rdperf -l clients -d 'Say how many queue pairs each of N clients may use' -r
complete -c rdperf -l sram -d 'The adapter\'s memory for caching [default: 2M]' -r
complete -c rdperf -l left -d 'The share of the peak that is left at 3000 connections' -r
complete -c rdperf -l key-file -d 'Read KEY from the first line of FILE instead of taking it from the arguments' -r -F
complete -c rdperf -l key-fd -d 'Read KEY from the first line of the open file descriptor FD instead of taking it from the arguments' -r
complete -c rdperf -l rsh -d 'The command that runs a program on a host, instead of ssh; RDCP_RSH in the environment sets it too' -r
complete -c rdperf -l launcher -d 'What runs a program on a host: ssh, slurm (srun in an allocation, which copies to several of its nodes take by themselves), or a command with %h for the host, and %c for what is run there if that is not to be its last word, such as \'mpirun -q -n 1 --host %h sh -c %c\'' -r
complete -c rdperf -l parallel -d 'Log in to so many hosts at once' -r
complete -c rdperf -s P -l ssh-port -d 'ssh\'s port' -r
complete -c rdperf -s i -d 'ssh\'s key; may be repeated' -r
complete -c rdperf -s J -d 'The host that ssh goes through' -r
complete -c rdperf -s F -d 'ssh\'s configuration' -r
complete -c rdperf -s o -d 'An option of ssh\'s, such as Compression=no; may be repeated' -r
complete -c rdperf -l agent -d 'The agent\'s program on other hosts [default: rdma-pipe-agent]' -r
complete -c rdperf -l via -d 'The address or interface, of either end, that the data is to go by' -r
complete -c rdperf -l all -d 'Every length from 2 bytes to 8 MiB'
complete -c rdperf -l bidirectional -d 'Both ends send at once; the sums are told'
complete -c rdperf -l reverse -d 'The other end sends'
complete -c rdperf -l poll -d 'Look for messages all the time, at both ends, instead of sleeping until one comes'
complete -c rdperf -s v -l verbose -d 'Print what happens as it does'
complete -c rdperf -l show-config -d 'Print what each option would be set to, and where that is from; do nothing else'
complete -c rdperf -l once -d 'End after the first measurement'
complete -c rdperf -l no-bootstrap -d 'Fail where a host has no agent, instead of copying this one to ~/.cache/rdma-pipe there'
complete -c rdperf -l relay -d 'Send the data through the connections that ssh has made, by way of this host'
complete -c rdperf -s h -l help -d 'Print help (see more with \'--help\')'
complete -c rdperf -s V -l version -d 'Print version'
