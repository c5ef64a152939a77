#compdef NAME
# Completions of NAME for zsh: what may come is asked of rdma-pipe itself.
_NAME() {
    local ret=1 line value about kind
    local -a answer open open_shown closed closed_shown
    answer=("${(@f)$(rdma-pipe complete zsh NAME "${(j: :)words[1,CURRENT-1]} $QIPREFIX$IPREFIX$PREFIX" 2>/dev/null)}")
    for line in "${(@)answer[2,-1]}"; do
        value=${line%%$'\t'*}
        about=
        [[ $line == "$value" ]] || about=${line#*$'\t'}
        case $value in
            '') ;;
            *[/:=]) open+=("$value") open_shown+=("$value${about:+  -- $about}") ;;
            *) closed+=("$value") closed_shown+=("$value${about:+  -- $about}") ;;
        esac
        [[ -z $about ]] || kind=-l
    done
    # They are whole words, so what is typed is replaced: it may be quoted in another way.
    (( ! $#open )) || compadd -U $kind -S '' -d open_shown -a open && ret=0
    (( ! $#closed )) || compadd -U $kind -d closed_shown -a closed && ret=0
    if [[ ${answer[1]:-files} == files ]]; then
        # Behind the sign of an option there is a path of its own.
        compset -P 1 '--*='
        _files && ret=0
    fi
    return ret
}

# Found in a directory of functions, or read by a shell that has done that.
if [[ ${funcstack[1]} == _NAME ]]; then
    _NAME "$@"
else
    compdef _NAME NAME
fi
