complete -c rdma-pipe-agent -s h -l help -d 'Print help (see more with \'--help\')'
complete -c rdma-pipe-agent -s V -l version -d 'Print version'
