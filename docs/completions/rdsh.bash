# Completions of rdsh for bash: what may come is asked of rdma-pipe itself.
_rdsh() {
    local answer
    mapfile -t answer < <(rdma-pipe complete bash rdsh "${COMP_LINE:0:COMP_POINT}" "$2" 2>/dev/null)
    COMPREPLY=("${answer[@]:1}")
    if [[ ${#COMPREPLY[@]} -eq 0 && ${answer[0]-files} == files ]]; then
        compopt -o bashdefault -o default
    elif [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[/:=] ]]; then
        compopt -o nospace
    fi
}

complete -F _rdsh rdsh
