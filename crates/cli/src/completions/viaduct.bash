
# What the above does not know: the program that `run` starts and its own words, and where `path` can move a connection.
_viaduct_program() {
    local at
    for ((at = 2; at < COMP_CWORD; at++)); do
        case ${COMP_WORDS[at]} in
            --)
                at=$((at + 1))
                break
                ;;
            @RUN_OPTIONS@)
                at=$((at + 1))
                # The shell takes `--path=tcp` for three words.
                [[ ${COMP_WORDS[at]} == = ]] && at=$((at + 1))
                ;;
            -*) ;;
            *) break ;;
        esac
    done
    # An option, or the value of one.
    if ((at > COMP_CWORD)) || [[ ${COMP_WORDS[at - 1]} != -- && ${COMP_WORDS[at]} == [-=]* ]]; then
        return 1
    fi
    if declare -F _command_offset >/dev/null; then
        _command_offset "$at"
    elif ((at == COMP_CWORD)); then
        mapfile -t COMPREPLY < <(compgen -c -- "$2")
    else
        COMPREPLY=()
    fi
}

_viaduct_path() {
    local line=${COMP_LINE:0:COMP_POINT} first="" at
    local -a words
    # Not the shell's own words, which end at the colon of an address.
    read -ra words <<<"$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    local count=0 last=$((${#words[@]} - 1))
    if [[ ${words[last]} == -* || ${words[last - 1]} == --dir ]]; then
        return 1
    fi
    for ((at = 2; at < last; at++)); do
        case ${words[at]} in
            --dir) at=$((at + 1)) ;;
            -*) ;;
            *)
                first=${first:-${words[at]}}
                count=$((count + 1))
                ;;
        esac
    done
    COMPREPLY=()
    # PID FD PATH, or ADDR:PORT PATH.
    if [[ $count -eq 1 && $first == *:* || $count -eq 2 && $first != *:* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "@PATHS@" -- "${words[last]}")
    fi
}

_viaduct_whole() {
    case ${COMP_WORDS[1]} in
        run) ((COMP_CWORD > 1)) && _viaduct_program "$@" && return ;;
        path) ((COMP_CWORD > 1)) && _viaduct_path "$@" && return ;;
    esac
    _viaduct "$@"
}

complete -F _viaduct_whole -o bashdefault -o default viaduct
