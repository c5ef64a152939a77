complete -c rddoctor -l seconds -d 'Seconds to measure the bandwidth to HOST; 0 leaves it out' -r
complete -c rddoctor -l transport -d 'Which transport the bandwidth is measured on' -r -f -a "auto\t'RDMA where both ends have an adapter that reaches the other, else TCP'
rdma\t'RDMA only; fail where there is none'
prefer-rdma\t'RDMA, software devices (rxe, siw) included, else TCP'
tcp\t'TCP only'"
complete -c rddoctor -l port-range -d 'Ports that may be taken for what is tried' -r
complete -c rddoctor -l rsh -d 'The command that runs a program on a host, instead of ssh; RDCP_RSH in the environment sets it too' -r
complete -c rddoctor -l launcher -d 'What runs a program on a host: ssh, slurm (srun in an allocation, which copies to several of its nodes take by themselves), or a command with %h for the host, and %c for what is run there if that is not to be its last word, such as \'mpirun -q -n 1 --host %h sh -c %c\'' -r
complete -c rddoctor -l parallel -d 'Log in to so many hosts at once' -r
complete -c rddoctor -s P -l ssh-port -d 'ssh\'s port' -r
complete -c rddoctor -s i -d 'ssh\'s key; may be repeated' -r
complete -c rddoctor -s J -d 'The host that ssh goes through' -r
complete -c rddoctor -s F -d 'ssh\'s configuration' -r
complete -c rddoctor -s o -d 'An option of ssh\'s, such as Compression=no; may be repeated' -r
complete -c rddoctor -l agent -d 'The agent\'s program on other hosts [default: rdma-pipe-agent]' -r
complete -c rddoctor -l via -d 'The address or interface, of either end, that the data is to go by' -r
complete -c rddoctor -l color -d 'When to use colours' -r -f -a "auto\t'On a terminal, unless NO_COLOR is set'
always\t'Always'
never\t'Never'"
complete -c rddoctor -l json -d 'Print the findings as one JSON object'
complete -c rddoctor -l fix-script -d 'Print the fixes as a shell script, to be read and then run as root on each host'
complete -c rddoctor -l no-bootstrap -d 'Fail where a host has no agent, instead of copying this one to ~/.cache/rdma-pipe there'
complete -c rddoctor -l relay -d 'Send the data through the connections that ssh has made, by way of this host'
complete -c rddoctor -l show-config -d 'Print what each option would be set to, and where that is from; do nothing else'
complete -c rddoctor -s h -l help -d 'Print help (see more with \'--help\')'
complete -c rddoctor -s V -l version -d 'Print version'
