//! Plug-ins that a host loads into scopes of symbols of their own (`RTLD_DEEPBIND`), as PHP loads its extensions.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use viaduct_testkit::binaries::binary;
use viaduct_testkit::processes::{free_port, wait_until};
use viaduct_testkit::{Instance, Launch, Mode, Program, can_run, where_prompt};

const PATIENCE: Duration = Duration::from_secs(20);
/// What is said of a connection that was not matched, or too late.
const NOT_FAST: &str = "it was not fast";
/// With these a plug-in has addresses of functions in its code.
const RELOCATED: &[&str] = &["-fno-pic", "-mcmodel=large", "-Wl,-z,notext"];

fn compile(instance: &Instance, result: &str, source: &str, options: &[&str]) -> PathBuf {
    let programs = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/plugins/programs");
    let result = instance.scratch(result);
    let output = Command::new("cc")
        .args(["-O1", "-Wall", "-Wextra", "-Werror", "-xc", "-o"])
        .arg(&result)
        .arg(programs.join(source))
        .args(options)
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    result
}

/// The plug-in that was linked with `options`.
fn plugin(instance: &Instance, options: &[&str]) -> PathBuf {
    compile(
        instance,
        "plugin.so",
        "plugin.c",
        &[&["-shared", "-fPIC"], options].concat(),
    )
}

/// As the C library, ours finds what unwinds the stack before a thread ends itself, which must not wait for the dynamic
/// linker then.
#[test]
fn a_thread_ends_itself_while_a_library_is_unloaded() {
    if !can_run(false, &["cc"]) {
        return;
    }
    let instance = Instance::start();
    let library = compile(&instance, "joining.so", "joining.c", &["-shared", "-fPIC"]);
    let program = compile(&instance, "leaving", "leaving.c", &["-rdynamic", "-pthread"]);
    for mode in [Mode::Native, Mode::Accelerated(&instance)] {
        let left = Launch::new(mode, &program, [&library]).spawn();
        assert!(left.finish(PATIENCE).success().contains("left"));
    }
}

/// A program that is both ends of its connection and has functions with names of the C library's: as it is, or with
/// another library behind ours.
fn echoes_with_own_names(other: Option<&str>) {
    if !can_run(false, &["cc"]) {
        return;
    }
    where_prompt(&[NOT_FAST], || {
        let instance = Instance::start();
        let program = compile(&instance, "names", "names.c", &["-rdynamic", "-pthread"]);
        let other = other.map(|source| compile(&instance, "other.so", source, &["-shared", "-fPIC"]));
        let behind = other.map_or_else(String::new, |other| format!(":{}", other.display()));
        for mode in [Mode::Native, Mode::Accelerated(&instance)] {
            let (program, port) = (program.display(), free_port());
            let script = format!("LD_PRELOAD=\"$LD_PRELOAD{behind}\" exec {program} {port}");
            let echoed = Launch::new(mode, "sh", ["-c", &script]).options("--offer now").spawn();
            assert_eq!(echoed.finish(PATIENCE).success(), "100000\n");
        }
        assert!(instance.stats().pairs == 1, "{NOT_FAST}");
    });
}

/// The library's own calls go to its functions and to the C library's, whatever else has their names.
#[test]
fn a_program_has_functions_with_names_of_the_c_librarys() {
    echoes_with_own_names(None);
}

/// A function that is called as libaio's is left alone.
#[test]
fn a_library_has_an_io_submit_of_its_own() {
    if !can_run(false, &["cc"]) {
        return;
    }
    let instance = Instance::start();
    let library = compile(&instance, "own_requests.so", "own_requests.c", &["-shared", "-fPIC"]);
    let path = format!(
        "-Wl,-rpath,{},{}",
        library.with_file_name("").display(),
        library.display()
    );
    let program = compile(&instance, "own_requests", "own_requests.c", &["-DPROGRAM", &path]);
    for mode in [Mode::Native, Mode::Accelerated(&instance)] {
        let called = Launch::new(mode, &program, [""; 0]).spawn();
        assert_eq!(called.finish(PATIENCE).success(), "8765432\n8765433\n");
    }
}

/// Libraries that the program needs are loaded before ours.
#[test]
fn a_library_connects_when_it_is_loaded() {
    if !can_run(false, &["cc"]) {
        return;
    }
    where_prompt(&[NOT_FAST], || {
        let instance = Instance::start();
        let library = compile(&instance, "early.so", "early.c", &["-shared", "-fPIC"]);
        let path = format!(
            "-Wl,-rpath,{},{}",
            library.with_file_name("").display(),
            library.display()
        );
        let program = compile(&instance, "early", "early.c", &["-DPROGRAM", &path]);
        for mode in [Mode::Native, Mode::Accelerated(&instance)] {
            let echoed = Launch::new(mode, &program, [""; 0]).options("--offer now").spawn();
            assert_eq!(echoed.finish(PATIENCE).success(), "echoed\n");
        }
        assert!(instance.stats().pairs == 1, "{NOT_FAST}");
    });
}

/// As libfaketime has it; the library has waits that end by the clock.
#[test]
fn time_stands_still() {
    echoes_with_own_names(Some("still.c"));
}

/// What `make` makes echoes over shared memory.
fn echoes(make: impl Fn(&Instance) -> PathBuf) {
    echoes_in("host.c", make);
}

/// What viaductd does not answer within fifty milliseconds stays on TCP for a second, which is longer than these
/// connections live.
fn echoes_in(host: &str, make: impl Fn(&Instance) -> PathBuf) {
    if can_run(false, &["cc"]) {
        where_prompt(&[NOT_FAST], || echoes_once(host, &make));
    }
}

fn echoes_once(host: &str, make: impl Fn(&Instance) -> PathBuf) {
    let instance = Instance::start();
    let host = compile(&instance, "host", host, &["-rdynamic"]);
    let plugin = make(&instance).to_string_lossy().into_owned();
    let port = free_port().to_string();
    let start = |arguments: &[&str]| Launch::new(Mode::Accelerated(&instance), &host, arguments).spawn();
    let mut server = start(&[&port, &plugin, "accepted"]).listening(port.parse().unwrap());
    start(&[&port]).finish(PATIENCE).success();
    // That the end has been closed is seen too.
    assert!(wait_until(PATIENCE, || instance.totals_of(server.pid()).ended == 1));
    let totals = instance.totals_of(server.pid());
    assert_eq!((totals.bytes_sent, totals.bytes_received), (1_001_000, 1_001_000));
    // The match takes a while where the machine is busy.
    assert!(totals.fast_bytes() > 500_000, "{NOT_FAST}: {totals:#?}");
    server.kill();
}

#[test]
fn whose_imports_are_found_with_their_first_calls() {
    echoes(|instance| plugin(instance, &["-Wl,-z,lazy"]));
}

#[test]
fn whose_imports_are_found_at_once_and_sealed() {
    echoes(|instance| plugin(instance, &["-Wl,-z,now", "-Wl,-z,relro"]));
}

#[test]
fn that_call_by_the_table_of_addresses() {
    echoes(|instance| plugin(instance, &["-fno-plt"]));
}

#[test]
fn whose_calls_are_in_a_library_that_they_need() {
    echoes(|instance| {
        let library = plugin(instance, &["-Wl,-soname,libneeded.so"]);
        std::fs::rename(&library, library.with_file_name("libneeded.so")).unwrap();
        let place = library.with_file_name("").to_string_lossy().into_owned();
        let (at, path) = (format!("-L{place}"), format!("-Wl,-rpath,{place}"));
        let options = ["-shared", "-Wl,--no-as-needed", &at, "-lneeded", &path];
        compile(instance, "outer.so", "/dev/null", &options)
    });
}

#[test]
fn with_a_function_of_the_same_name() {
    echoes(|instance| plugin(instance, &["-DOWN_SEND"]));
}

#[test]
fn while_nobody_allocates_under_the_lock_of_the_loader() {
    echoes_in("watched.c", |instance| plugin(instance, &[]));
}

/// What `viaduct explain` says.
fn explained(instance: &Instance, target: &str) -> String {
    let mut command = Command::new(binary("viaduct"));
    let output = command
        .args(["explain", "--dir"])
        .arg(instance.dir())
        .arg(target)
        .output();
    String::from_utf8(output.unwrap().stdout).unwrap()
}

/// What `make` makes echoes over TCP, and it is told why. Loaded when `host.c` takes `when` to say.
fn echoes_plainly(make: impl Fn(&Instance) -> PathBuf, when: &[&str]) {
    if can_run(false, &["cc"]) {
        where_prompt(&[NOT_FAST], || echoes_plainly_once(&make, when));
    }
}

fn echoes_plainly_once(make: impl Fn(&Instance) -> PathBuf, when: &[&str]) {
    let instance = Instance::start();
    let host = compile(&instance, "host", "host.c", &[]);
    let plugin = make(&instance).to_string_lossy().into_owned();
    let port = free_port();
    let start = |arguments: &[&str]| Launch::new(Mode::Accelerated(&instance), &host, arguments).spawn();
    let mut server = start(&[&[&*port.to_string(), &*plugin], when].concat()).listening(port);
    let (pid, place) = (server.pid().to_string(), format!(":{port}"));
    let explains = || {
        for target in [&pid, &place] {
            let text = explained(&instance, target);
            let advice = text.split_once("[unseen-calls]\n").map(|(_, rest)| rest.trim_start());
            assert!(advice.is_some_and(|advice| advice.starts_with("What to do:")), "{text}");
        }
    };
    if when[0] == "first" {
        explains();
    }
    let mut client = start(&[&port.to_string(), "stays"]);
    let is_done = |client: &Program| client.output().contains("done");
    wait_until(PATIENCE, || {
        is_done(&client) || !client.is_running() || !server.is_running()
    });
    assert!(is_done(&client), "{} {}", client.errors(), server.errors());
    let rows = instance.status();
    let end_of = |program: &Program| rows.iter().find(|row| row.pid == program.pid()).unwrap();
    let end = end_of(&server);
    if when[0] == "later" {
        assert!(end.fast_bytes_received > 0, "{NOT_FAST}: {rows:#?}");
    } else {
        assert_eq!(end.fast_bytes_received, 0, "{rows:#?}");
    }
    assert_eq!((&*end.path, &*end.reason), ("tcp", "unseen-calls"), "{rows:#?}");
    assert_eq!(end_of(&client).path, "tcp", "{rows:#?}");
    explains();
}

#[test]
fn with_relocations_in_its_code() {
    echoes_plainly(|instance| plugin(instance, RELOCATED), &["accepted"]);
}

#[test]
fn one_of_whose_constructors_keeps_an_address() {
    echoes_plainly(|instance| plugin(instance, &["-DKEEPS_ADDRESS"]), &["accepted"]);
}

#[test]
fn that_comes_before_the_first_connection() {
    echoes_plainly(|instance| plugin(instance, &[]), &["first", "several"]);
}

#[test]
fn that_comes_to_several_threads() {
    echoes_plainly(|instance| plugin(instance, &[]), &["accepted", "several"]);
}

#[test]
fn that_comes_to_several_threads_and_an_accelerated_connection() {
    echoes_plainly(|instance| plugin(instance, &[]), &["later", "several"]);
}

#[test]
fn whose_errors_are_told_as_they_are_natively() {
    if !can_run(false, &["cc"]) {
        return;
    }
    let instance = Instance::start();
    let errors = compile(&instance, "errors", "errors.c", &[]);
    // One that is led here, and one that cannot be.
    for options in [&[][..], RELOCATED] {
        let plugin = plugin(&instance, options);
        let told = |mode| Launch::new(mode, &errors, [&plugin]).run(PATIENCE).success();
        let native = told(Mode::Native);
        assert!(native.contains("plug-in: there, no error\n"), "{native}");
        assert_eq!(told(Mode::Accelerated(&instance)), native);
    }
}

/// What the library `other.c` says that was sent through it, while a host echoes by a plug-in. It stands before or
/// behind ours.
fn sent_by_others(instance: Option<&Instance>, options: &str, is_first: bool, scratch: &Instance) -> u64 {
    let host = compile(scratch, "host", "host.c", &[]).to_string_lossy().into_owned();
    let plugin = plugin(scratch, &[]).to_string_lossy().into_owned();
    let other = compile(scratch, "other.so", "other.c", &["-shared", "-fPIC"]);
    let other = other.to_string_lossy();
    let port = free_port();
    let mode = || instance.map_or(Mode::Native, Mode::Accelerated);
    let list = if is_first {
        format!("{other}:$LD_PRELOAD")
    } else {
        format!("$LD_PRELOAD:{other}")
    };
    let script = format!("LD_PRELOAD=\"{list}\" exec {host} {port} {plugin} later ends");
    let server = Launch::new(mode(), "sh", ["-c", &script])
        .options(options)
        .spawn()
        .listening(port);
    Launch::new(mode(), host, [port.to_string()])
        .options(options)
        .run(PATIENCE)
        .success();
    let said = server.finish(PATIENCE).success();
    let sent = said
        .trim()
        .strip_prefix("sent by others: ")
        .unwrap_or_else(|| panic!("{said}"));
    sent.parse().unwrap()
}

#[test]
fn beside_another_library_that_stands_before_functions() {
    if !can_run(false, &["cc"]) {
        return;
    }
    let instance = Instance::start();
    // What the plug-in sends goes past it.
    let native = sent_by_others(None, "", true, &instance);
    assert_eq!(native, 500_500);
    assert_eq!(sent_by_others(Some(&instance), "--offer now", true, &instance), native);
    // Behind ours it has what goes to the kernel, that of the plug-in too.
    let plain = sent_by_others(Some(&instance), "--path tcp", false, &instance);
    assert!((native..=1_001_000).contains(&plain), "{plain}");
    // What a lane carries goes past it, more or less as it happens.
    sent_by_others(Some(&instance), "--offer now", false, &instance);
}

/// Its runtime wants to be the first library of a program.
#[test]
fn an_address_sanitizer_is_content_with_us_before_it() {
    let sanitized = ["-fsanitize=address"];
    // It is a package of its own elsewhere.
    let made = |options: &[&str]| {
        Command::new("cc")
            .args(options)
            .output()
            .is_ok_and(|output| output.status.success())
    };
    let empty = ["-xc", "/dev/null", "-shared", "-o", "/dev/null"];
    if !can_run(false, &["cc"]) || !made(&[&sanitized[..], &empty].concat()) {
        eprintln!("skipped: needs an address sanitizer");
        return;
    }
    where_prompt(&[NOT_FAST], || {
        let instance = Instance::start();
        let host = compile(&instance, "host", "host.c", &["-rdynamic"]);
        let plugin = plugin(&instance, &[]);
        let client = compile(
            &instance,
            "client",
            "host.c",
            &[&["-rdynamic"], &sanitized[..]].concat(),
        );
        let port = free_port().to_string();
        let arguments = [&port, &*plugin.to_string_lossy(), "accepted"];
        let start = |program, arguments: &[&str]| Launch::new(Mode::Accelerated(&instance), program, arguments).spawn();
        let mut server = start(&host, &arguments).listening(port.parse().unwrap());
        start(&client, &[&port]).finish(PATIENCE).success();
        assert!(wait_until(PATIENCE, || instance.totals_of(server.pid()).ended == 1));
        let totals = instance.totals_of(server.pid());
        assert!(totals.fast_bytes() > 500_000, "{NOT_FAST}: {totals:#?}");
        server.kill();
    });
}

/// Our functions of liburing's names are found before those of a plug-in's, which are what is to be called behind them.
#[test]
fn with_rings_of_their_own() {
    if !can_run(false, &["cc"]) {
        return;
    }
    let instance = Instance::start();
    let host = compile(&instance, "caller", "caller.c", &[]);
    for rings in ["-luring", "-l:liburing.a"] {
        let plugin = |name, place| compile(&instance, name, "ringing.c", &["-shared", "-fPIC", place, rings]);
        // What the other has is elsewhere in it.
        let plugins = [
            plugin("ringing.so", "-falign-functions=16"),
            plugin("another.so", "-falign-functions=8192"),
        ];
        for mode in [Mode::Native, Mode::Accelerated(&instance)] {
            let said = Launch::new(mode, &host, &plugins).spawn().finish(PATIENCE).success();
            assert_eq!(said, "ring: 0\nring: 0\n", "{rings}");
        }
    }
}

/// Has a ring of a library's, and echoes.
const ECHO_WITH_A_RING: &str = "import ctypes, socket, sys
assert ctypes.CDLL(sys.argv[2]).io_uring_queue_init(4) >= 0
s, _ = socket.create_server(('127.0.0.1', int(sys.argv[1]))).accept()
while True:
    s.sendall(s.recv(1001))
";

/// What it hands over is seen, however it asks.
#[test]
fn liburing_that_asks_for_rings_by_number_leaves_connections_alone() {
    if !can_run(false, &["cc", "python3"]) {
        return;
    }
    where_prompt(&[NOT_FAST], || {
        let instance = Instance::start();
        let mode = Mode::Accelerated(&instance);
        let host = compile(&instance, "host", "host.c", &[]);
        let library = compile(&instance, "liburing.so.2", "old_liburing.c", &["-shared", "-fPIC"]);
        let port = free_port();
        let number = port.to_string();
        let words = ["-c", ECHO_WITH_A_RING, &number, library.to_str().unwrap()];
        let server = Launch::new(mode, "python3", words).spawn().listening(port);
        let mut client = Launch::new(mode, &host, [&*number, "stays"]).spawn();
        wait_until(PATIENCE, || client.output().contains("done") || !client.is_running());
        assert!(
            client.output().contains("done"),
            "{} {}",
            client.errors(),
            server.errors()
        );
        let rows = instance.status();
        let end = rows.iter().find(|row| row.pid == server.pid()).unwrap();
        assert_ne!(end.reason, "unseen-calls", "{rows:#?}");
        assert_eq!(
            (&*end.path, &*end.reason),
            ("shm", "accelerated"),
            "{NOT_FAST}: {rows:#?}"
        );
    });
}

/// Has each library ask for a ring, and closes it; tells where they lay.
const ASK_IN_TURN: &str = "import _ctypes, ctypes, sys
for path in sys.argv[1:]:
    library = ctypes.CDLL(path)
    place = next(line.split('-')[0] for line in open('/proc/self/maps') if path in line)
    print(place, library.ask())
    _ctypes.dlclose(library._handle)
";

/// What is known of code goes with it.
#[test]
fn another_library_in_the_place_of_one_that_was_told_that_there_are_no_rings() {
    if !can_run(false, &["cc", "python3"]) {
        return;
    }
    let instance = Instance::start();
    let library = |name: &str, word: &str| {
        let word = format!("-DWORD=\"{word}\"");
        let path = compile(&instance, name, "asking.c", &["-shared", "-fPIC", &word]);
        path.to_str().unwrap().to_owned()
    };
    let (known, unknown) = (
        library("one.so", "UV_USE_IO_URING"),
        library("two.so", "UV_USE_NO_RINGS"),
    );
    let words = ["-c", ASK_IN_TURN, &known, &unknown, &known];
    let asked = Launch::new(Mode::Accelerated(&instance), "python3", words).spawn();
    let said = asked.finish(PATIENCE).success();
    let said: Vec<_> = said.split_whitespace().collect();
    assert!(said[0] == said[2] && said[2] == said[4], "{said:?}");
    // -ENOSYS, and a ring.
    assert_eq!([said[1], said[3], said[5]], ["-38", "0", "-38"]);
}
