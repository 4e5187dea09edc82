# Print an optspec for argparse to handle cmd's options that are independent of any subcommand.
function __fish_viaduct_global_optspecs
    string join \n h/help V/version
end

function __fish_viaduct_needs_command
    # Figure out if the current invocation already has a command.
    set -l cmd (commandline -opc)
    set -e cmd[1]
    argparse -s (__fish_viaduct_global_optspecs) -- $cmd 2>/dev/null
    or return
    if set -q argv[1]
        # Also print the command, so this can be used to figure out what it is.
        echo $argv[1]
        return 1
    end
    return 0
end

function __fish_viaduct_using_subcommand
    set -l cmd (__fish_viaduct_needs_command)
    test -z "$cmd"
    and return 1
    contains -- $cmd[1] $argv
end

complete -c viaduct -n "__fish_viaduct_needs_command" -s h -l help -d 'Print help'
complete -c viaduct -n "__fish_viaduct_needs_command" -s V -l version -d 'Print version'
complete -c viaduct -n "__fish_viaduct_needs_command" -f -a "run" -d 'Run a program with its TCP connections accelerated'
complete -c viaduct -n "__fish_viaduct_needs_command" -f -a "status" -d 'List the connections of programs under Viaduct'
complete -c viaduct -n "__fish_viaduct_needs_command" -f -a "explain" -d 'Say why a connection is or is not accelerated, and what to do'
complete -c viaduct -n "__fish_viaduct_needs_command" -f -a "path" -d 'Move a live connection to another path'
complete -c viaduct -n "__fish_viaduct_needs_command" -f -a "doctor" -d 'Check what this machine allows'
complete -c viaduct -n "__fish_viaduct_needs_command" -f -a "bench" -d 'Measure Viaduct against plain TCP'
complete -c viaduct -n "__fish_viaduct_needs_command" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'
complete -c viaduct -n "__fish_viaduct_using_subcommand run" -l path -d 'Which paths the connections may take [default: auto]' -r -f -a "auto\t'The fastest there is'
tcp\t'Plain TCP only'
shm\t'Shared memory wherever possible, without waiting for a connection to prove worth it'"
complete -c viaduct -n "__fish_viaduct_using_subcommand run" -l spin -d 'Whether a waiting program polls before it sleeps [default: auto]' -r -f -a "auto\t'As long as it pays off'
never\t'Sleep at once: least CPU time'
always\t'Poll for up to 100 µs in each wait, whoever else wants the processor: least latency'"
complete -c viaduct -n "__fish_viaduct_using_subcommand run" -l offer -d 'When a connection is offered to be matched with its other end [default: auto]' -r -f -a "auto\t'Once it has shown itself worth it'
now\t'At the first byte'
wait\t'At once, and connect and accept wait up to 50 ms for the outcome; for tests'"
complete -c viaduct -n "__fish_viaduct_using_subcommand run" -l rules -d 'File with `[[rules]]` that go before those of the configuration [default: none]' -r -F
complete -c viaduct -n "__fish_viaduct_using_subcommand run" -l dir -d 'Runtime directory of the instance; both ends must use the same [default: /run/viaduct for root, else $XDG_RUNTIME_DIR/viaduct, or /tmp/viaduct-UID where that is unset]' -r -F
complete -c viaduct -n "__fish_viaduct_using_subcommand run" -l config -d 'Configuration file to read on top of the machine\'s and the user\'s [default: $VIADUCT_CONFIG, or none]' -r -F
complete -c viaduct -n "__fish_viaduct_using_subcommand run" -s v -l verbose -d 'Say on standard error what is done [default: only what goes wrong]'
complete -c viaduct -n "__fish_viaduct_using_subcommand run" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c viaduct -n "__fish_viaduct_using_subcommand status" -l dir -d 'Runtime directory of the instance to show' -r -F
complete -c viaduct -n "__fish_viaduct_using_subcommand status" -l json -d 'Print JSON: an array with one object a connection end, or a process with --totals; with --watch one array a line'
complete -c viaduct -n "__fish_viaduct_using_subcommand status" -l totals -d 'Show one line a process instead: what all its connections have carried, those that have ended included, and those of its forked children that have ended'
complete -c viaduct -n "__fish_viaduct_using_subcommand status" -s w -l watch -d 'Refresh each second'
complete -c viaduct -n "__fish_viaduct_using_subcommand status" -s a -l all -d 'Show the programs of every instance'
complete -c viaduct -n "__fish_viaduct_using_subcommand status" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c viaduct -n "__fish_viaduct_using_subcommand explain" -l dir -d 'Runtime directory that the programs are expected to use' -r -F
complete -c viaduct -n "__fish_viaduct_using_subcommand explain" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c viaduct -n "__fish_viaduct_using_subcommand path" -l dir -d 'Runtime directory of the instance in which to look for ADDR:PORT [default: as `viaduct run`]' -r -F
complete -c viaduct -n "__fish_viaduct_using_subcommand path" -l no-wait -d 'Do not wait for the move [default: wait up to 2 seconds]'
complete -c viaduct -n "__fish_viaduct_using_subcommand path" -s h -l help -d 'Print help'
complete -c viaduct -n "__fish_viaduct_using_subcommand doctor" -l dir -d 'Runtime directory of the instance to look at' -r -F
complete -c viaduct -n "__fish_viaduct_using_subcommand doctor" -l json -d 'Print JSON: an array of objects with check, level (ok, warn, fail), finding and consequence'
complete -c viaduct -n "__fish_viaduct_using_subcommand doctor" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c viaduct -n "__fish_viaduct_using_subcommand bench" -l json -d 'Write every run\'s figures to FILE' -r -F
complete -c viaduct -n "__fish_viaduct_using_subcommand bench" -l svg -d 'Draw the result to FILE' -r -F
complete -c viaduct -n "__fish_viaduct_using_subcommand bench" -l runs -d 'How often each experiment runs each way [default: 5, seek 10, with --quick 3]' -r
complete -c viaduct -n "__fish_viaduct_using_subcommand bench" -l only -d 'Only the experiments of apps whose name begins so; of the others, only this road, as named below' -r
complete -c viaduct -n "__fish_viaduct_using_subcommand bench" -l quick -d 'Fewer sizes, shorter and fewer runs'
complete -c viaduct -n "__fish_viaduct_using_subcommand bench" -s h -l help -d 'Print help (see more with \'--help\')'
complete -c viaduct -n "__fish_viaduct_using_subcommand help; and not __fish_seen_subcommand_from run status explain path doctor bench help" -f -a "run" -d 'Run a program with its TCP connections accelerated'
complete -c viaduct -n "__fish_viaduct_using_subcommand help; and not __fish_seen_subcommand_from run status explain path doctor bench help" -f -a "status" -d 'List the connections of programs under Viaduct'
complete -c viaduct -n "__fish_viaduct_using_subcommand help; and not __fish_seen_subcommand_from run status explain path doctor bench help" -f -a "explain" -d 'Say why a connection is or is not accelerated, and what to do'
complete -c viaduct -n "__fish_viaduct_using_subcommand help; and not __fish_seen_subcommand_from run status explain path doctor bench help" -f -a "path" -d 'Move a live connection to another path'
complete -c viaduct -n "__fish_viaduct_using_subcommand help; and not __fish_seen_subcommand_from run status explain path doctor bench help" -f -a "doctor" -d 'Check what this machine allows'
complete -c viaduct -n "__fish_viaduct_using_subcommand help; and not __fish_seen_subcommand_from run status explain path doctor bench help" -f -a "bench" -d 'Measure Viaduct against plain TCP'
complete -c viaduct -n "__fish_viaduct_using_subcommand help; and not __fish_seen_subcommand_from run status explain path doctor bench help" -f -a "help" -d 'Print this message or the help of the given subcommand(s)'

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
        else if contains -- $words[1] --path --spin --offer --rules --dir --config
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
complete -c viaduct -n "__fish_viaduct_using_subcommand path; and __fish_viaduct_path_is_next" -f -a "tcp shm auto"
