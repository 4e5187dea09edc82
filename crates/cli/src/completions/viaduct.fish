
# What the above does not know: the program that `run` starts and its own words, and where `path` can move a connection.
function __fish_viaduct_path_is_next
    set -l before (commandline -opc)
    set -l words
    set -l skip
    for word in $before[3..-1]
        if test -n "$skip"
            set skip
        else if test "$word" = --dir
            set skip 1
        else if not string match -q -- '-*' "$word"
            set -a words $word
        end
    end
    # PID FD PATH, or ADDR:PORT PATH.
    if string match -q '*:*' "$words[1]"
        test (count $words) -eq 1
    else
        test (count $words) -eq 2
    end
end

function __fish_viaduct_program
    set -l words (commandline -opc)
    set words $words[3..-1]
    while set -q words[1]
        if test "$words[1]" = --
            set words $words[2..-1]
            break
        else if contains -- $words[1] @RUN_OPTIONS@
            set words $words[3..-1]
        else if string match -q -- '-*' $words[1]
            set words $words[2..-1]
        else
            break
        end
    end
    # An option of ours.
    not set -q words[1]; and string match -q -- '-*' (commandline -ct); and return
    complete -C (string join ' ' -- (string escape -- $words) (commandline -ct))
end

complete -c viaduct -n "__fish_viaduct_using_subcommand run" -x -a "(__fish_viaduct_program)"
complete -c viaduct -n "__fish_viaduct_using_subcommand path" -f
complete -c viaduct -n "__fish_viaduct_using_subcommand path; and __fish_viaduct_path_is_next" -f -a "@PATHS@"
