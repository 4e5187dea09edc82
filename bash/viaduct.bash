_viaduct() {
    local i cur prev opts cmd
    COMPREPLY=()
    if [[ "${BASH_VERSINFO[0]}" -ge 4 ]]; then
        cur="$2"
    else
        cur="${COMP_WORDS[COMP_CWORD]}"
    fi
    prev="$3"
    cmd=""
    opts=""

    for i in "${COMP_WORDS[@]:0:COMP_CWORD}"
    do
        case "${cmd},${i}" in
            ",$1")
                cmd="viaduct"
                ;;
            viaduct,bench)
                cmd="viaduct__subcmd__bench"
                ;;
            viaduct,doctor)
                cmd="viaduct__subcmd__doctor"
                ;;
            viaduct,explain)
                cmd="viaduct__subcmd__explain"
                ;;
            viaduct,help)
                cmd="viaduct__subcmd__help"
                ;;
            viaduct,path)
                cmd="viaduct__subcmd__path"
                ;;
            viaduct,run)
                cmd="viaduct__subcmd__run"
                ;;
            viaduct,status)
                cmd="viaduct__subcmd__status"
                ;;
            viaduct__subcmd__help,bench)
                cmd="viaduct__subcmd__help__subcmd__bench"
                ;;
            viaduct__subcmd__help,doctor)
                cmd="viaduct__subcmd__help__subcmd__doctor"
                ;;
            viaduct__subcmd__help,explain)
                cmd="viaduct__subcmd__help__subcmd__explain"
                ;;
            viaduct__subcmd__help,help)
                cmd="viaduct__subcmd__help__subcmd__help"
                ;;
            viaduct__subcmd__help,path)
                cmd="viaduct__subcmd__help__subcmd__path"
                ;;
            viaduct__subcmd__help,run)
                cmd="viaduct__subcmd__help__subcmd__run"
                ;;
            viaduct__subcmd__help,status)
                cmd="viaduct__subcmd__help__subcmd__status"
                ;;
            *)
                ;;
        esac
    done

    case "${cmd}" in
        viaduct)
            opts="-h -V --help --version run status explain path doctor bench help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 1 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        viaduct__subcmd__bench)
            opts="-h --json --svg --quick --runs --only --help latency bandwidth seek apps"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --json)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --svg)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --runs)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --only)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        viaduct__subcmd__doctor)
            opts="-h --json --dir --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --dir)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        viaduct__subcmd__explain)
            opts="-h --dir --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --dir)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        viaduct__subcmd__help)
            opts="run status explain path doctor bench help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        viaduct__subcmd__help__subcmd__bench)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        viaduct__subcmd__help__subcmd__doctor)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        viaduct__subcmd__help__subcmd__explain)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        viaduct__subcmd__help__subcmd__help)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        viaduct__subcmd__help__subcmd__path)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        viaduct__subcmd__help__subcmd__run)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        viaduct__subcmd__help__subcmd__status)
            opts=""
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 3 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        viaduct__subcmd__path)
            opts="-h --no-wait --dir --help tcp shm auto"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --dir)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        viaduct__subcmd__run)
            opts="-v -h --path --spin --offer --rules --dir --config --verbose --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --path)
                    COMPREPLY=($(compgen -W "auto tcp shm" -- "${cur}"))
                    return 0
                    ;;
                --spin)
                    COMPREPLY=($(compgen -W "auto never always" -- "${cur}"))
                    return 0
                    ;;
                --offer)
                    COMPREPLY=($(compgen -W "auto now wait" -- "${cur}"))
                    return 0
                    ;;
                --rules)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --dir)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                --config)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
        viaduct__subcmd__status)
            opts="-w -a -h --json --totals --watch --dir --all --help"
            if [[ ${cur} == -* || ${COMP_CWORD} -eq 2 ]] ; then
                COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
                return 0
            fi
            case "${prev}" in
                --dir)
                    COMPREPLY=($(compgen -f "${cur}"))
                    return 0
                    ;;
                *)
                    COMPREPLY=()
                    ;;
            esac
            COMPREPLY=( $(compgen -W "${opts}" -- "${cur}") )
            return 0
            ;;
    esac
}

if [[ "${BASH_VERSINFO[0]}" -eq 4 && "${BASH_VERSINFO[1]}" -ge 4 || "${BASH_VERSINFO[0]}" -gt 4 ]]; then
    complete -F _viaduct -o nosort -o bashdefault -o default viaduct
else
    complete -F _viaduct -o bashdefault -o default viaduct
fi

# What the above does not know: the program that `run` starts and its own words, and where `path` can move a connection.
_viaduct_program() {
    local at
    for ((at = 2; at < COMP_CWORD; at++)); do
        case ${COMP_WORDS[at]} in
            --)
                at=$((at + 1))
                break
                ;;
            --path | --spin | --offer | --rules | --dir | --config)
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
        mapfile -t COMPREPLY < <(compgen -W "tcp shm auto" -- "${words[last]}")
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
