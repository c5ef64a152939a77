# Completions of rdma-pipe-agent for fish: what may come is asked of rdma-pipe itself.
function __fish_rdma_pipe_agent_words
    set -l line (commandline -cp | string replace -r '\\\\$' '')
    set -l answer (rdma-pipe complete fish rdma-pipe-agent "$line" 2>/dev/null)
    if test "$answer[1]" != none
        # Behind the sign of an option there is a path of its own.
        set -l front (string match -r -- '^--[^=]*=' (commandline -ct))
        set -l path (string replace -r -- '^--[^=]*=' '' (commandline -ct))
        __fish_complete_path "$path" | string replace -r -- '^' "$front"
    end
    set -q answer[2]; and printf '%s\n' $answer[2..-1]
end

complete -c rdma-pipe-agent -f -a '(__fish_rdma_pipe_agent_words)'
