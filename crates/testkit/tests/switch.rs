//! Busy connections moved between paths thousands of times while both ends check every byte.

use std::collections::HashMap;
use std::time::{Duration, Instant};
use viaduct_control::counters::Wanted;
use viaduct_testkit::pattern::Random;
use viaduct_testkit::peer::{Report, reports};
use viaduct_testkit::processes::{free_port, wait_until};
use viaduct_testkit::prompt::Watch;
use viaduct_testkit::status::Row;
use viaduct_testkit::{Counters, Instance, Launch, Mode, Server, can_run, where_prompt};

/// How long the connections of one round live.
const SECONDS: u64 = 4;

/// How often the connections of each check change their paths at least, however many rounds that takes, and how many it
/// may take.
const CHANGES: u64 = 1000;
const ROUNDS: u64 = 20;

/// How long a wish may take that a busy end sees at once, on a machine that has much else to do.
const PATIENCE: Duration = Duration::from_secs(20);

/// Moves random connections of either end until `until`: mostly by the word that `viaduct path` writes, so that it
/// happens often enough, now and then by the command itself. Returns how many moves were asked for and how many changes
/// of path the connections have counted.
fn storm(instance: &Instance, pids: &[u32], seed: u64, until: Instant) -> (u64, u64) {
    let mut random = Random::new(seed);
    let counters: Vec<Counters> = pids.iter().map(|pid| Counters::open(*pid).unwrap()).collect();
    let mut asked = 0;
    let mut switches = vec![0; pids.len()];
    while Instant::now() < until {
        for (counters, switches) in counters.iter().zip(&mut switches) {
            // One that has ended counts no longer, so the most ever seen stands.
            let connections = counters.connections().unwrap();
            *switches = connections
                .iter()
                .map(|(_, switches)| switches)
                .sum::<u64>()
                .max(*switches);
            for (slot, _) in connections {
                let wanted = [Wanted::Tcp, Wanted::Shm, Wanted::Auto][usize::try_from(random.below(3)).unwrap()];
                counters.want(slot, wanted).unwrap();
                asked += 1;
            }
            std::thread::sleep(Duration::from_micros(random.below(3000)));
        }
        if random.below(200) == 0 {
            let rows = instance.status();
            if let Some(row) = rows.iter().find(|row| pids.contains(&row.pid)) {
                let moved = instance.move_connection(row.pid, row.fd, "shm");
                let lives = |other: &Row| (other.pid, other.fd, &other.remote) == (row.pid, row.fd, &row.remote);
                assert!(moved.is_ok() || !instance.status().iter().any(lives), "{moved:?}");
            }
        }
    }
    (asked, switches.iter().sum())
}

/// The reports of one end by connection.
fn by_seed(reports: Vec<Report>) -> HashMap<u64, Report> {
    reports.into_iter().map(|report| (report.seed, report)).collect()
}

fn check(waiting: &str, client_waits: &str, max_chunk: u32, seed: u64) {
    let instance = Instance::start();
    let mut server = Server::start(Mode::Accelerated(&instance), waiting);
    let (mut asked, mut changes, mut rounds) = (0, 0, 0);
    while changes < CHANGES && rounds < ROUNDS {
        let options = format!(
            "--mode {client_waits} --max-chunk {max_chunk} --seed {}",
            seed + 10 * rounds
        );
        let (more_asked, more_changes) = round(&instance, &mut server, &options, seed + rounds);
        asked += more_asked;
        changes += more_changes;
        rounds += 1;
    }
    println!("{waiting} and {client_waits}: {asked} moves asked for, {changes} changes of path in {rounds} rounds");
    assert!(changes >= CHANGES, "only {changes} changes of path");
}

/// Moves the connections of one client for a while, and compares what both ends have counted; returns what [`storm`]
/// does.
fn round(instance: &Instance, server: &mut Server, options: &str, seed: u64) -> (u64, u64) {
    let ended = server.reports().len();
    let arguments = format!("--connections 3 --seconds {SECONDS} {options}");
    let until = Instant::now() + Duration::from_millis(SECONDS * 1000 - 300);
    let watch = Watch::start();
    let mut client = server.client(Mode::Accelerated(instance), &arguments).spawn();
    let pids = [server.program.pid(), client.pid()];
    let there = instance.wait_for_status(Duration::from_secs(5), |rows| {
        let shown = |pid| rows.iter().filter(|row| row.pid == pid).count() == 3;
        pids.into_iter().all(shown)
    });
    // One that came too late to be seen, since the machine stood still, is moved by none.
    let moved = match there {
        Ok(_) => storm(instance, &pids, seed, until),
        Err(rows) => {
            assert!(!client.is_running() && watch.held_up().is_some(), "{rows:#?}");
            (0, 0)
        }
    };
    let near = by_seed(reports(&client.finish(Duration::from_secs(30)).success()));
    assert!(wait_until(Duration::from_secs(5), || server.reports().len() == ended + 3));
    server.assert_sound();
    let far = by_seed(server.reports());
    assert_eq!(near.len(), 3);
    for (seed, near) in &near {
        let far = &far[seed];
        assert_eq!((near.sent, near.received), (far.received, far.sent), "{near:?} {far:?}");
        assert!(near.sent > 0 && near.received > 0);
    }
    moved
}

#[test]
fn blocking_ends() {
    check("blocking", "blocking", 131_072, 1);
}

#[test]
fn level_triggered_ends() {
    check("epoll", "epoll", 131_072, 2);
}

#[test]
fn edge_triggered_ends() {
    check("edge", "edge", 131_072, 3);
}

#[test]
fn polling_against_blocking_with_small_calls() {
    check("poll", "blocking", 512, 4);
}

/// Moves the only connection of these processes there and back, by the wish of either end in turn and as soon as both
/// directions have moved, until each direction has changed its path so many times or the time is over. Returns how
/// often each has, by the end that sends.
fn shuttle(pids: [u32; 2], changes: u64, until: Instant) -> [u64; 2] {
    let ends = pids.map(|pid| Counters::open(pid).unwrap());
    let only = |end: &Counters| {
        let connections = end.connections().unwrap();
        assert_eq!(connections.len(), 1);
        connections[0]
    };
    let switches = || [0, 1].map(|end| only(&ends[end]).1);
    for end in [0, 1].into_iter().cycle() {
        let slot = only(&ends[end]).0;
        for wanted in [Wanted::Tcp, Wanted::Auto] {
            let before = switches();
            ends[end].want(slot, wanted).unwrap();
            while switches().iter().zip(before).any(|(now, before)| *now == before) {
                if Instant::now() > until {
                    return switches();
                }
                std::thread::sleep(Duration::from_micros(50));
            }
        }
        if switches().into_iter().all(|count| count >= changes) {
            break;
        }
    }
    switches()
}

/// The same connection all the while: nothing may add up.
#[test]
fn one_connection_is_moved_a_thousand_times_each_way() {
    let instance = Instance::start();
    let mode = Mode::Accelerated(&instance);
    // A direction changes its path when what is on its way has been received, so there is little of that.
    for (waiting, seed) in [("blocking --buffer 32768", 21), ("edge --buffer 32768", 22)] {
        let mut server = Server::start(mode, waiting);
        // On a machine that has much else to do it takes longer.
        let changes = [4, 30, 90].into_iter().map(|seconds| {
            let ended = server.reports().len();
            let arguments = format!("--seconds {seconds} --mode {waiting} --seed {seed}");
            let until = Instant::now() + Duration::from_millis(seconds * 1000 - 500);
            let client = server.client(mode, &arguments).spawn();
            let pids = [client.pid(), server.program.pid()];
            await_path(&instance, 2, "shm", |row| pids.contains(&row.pid));
            let changes = shuttle(pids, CHANGES, until);
            let near = reports(&client.finish(Duration::from_secs(60)).success()).remove(0);
            assert!(wait_until(PATIENCE, || server.reports().len() > ended));
            server.assert_sound();
            let far = server.reports().remove(ended);
            near.assert_whole(&far);
            println!("{waiting}, {seconds} s: {changes:?} changes of path, {near:?}");
            changes
        });
        let often = |changes: [u64; 2]| changes.into_iter().all(|count| count >= CHANGES);
        assert!(changes.into_iter().any(often), "{waiting}: too few changes of path");
    }
}

/// Waits until the rows that `meant` picks are `count`, each on `path`, and have carried more bytes than before.
fn await_path(instance: &Instance, count: usize, path: &str, meant: impl Fn(&&Row) -> bool) -> Vec<Row> {
    let carried = |row: &Row| row.bytes_sent + row.bytes_received;
    let before: u64 = instance.status().iter().filter(&meant).map(carried).sum();
    let rows = instance.wait_for_status(PATIENCE, |rows| {
        let own = || rows.iter().filter(&meant);
        own().count() == count
            && own().all(|row| row.path == path)
            && own().map(carried).sum::<u64>() > before + 1_000_000
    });
    rows.unwrap_or_else(|rows| panic!("not on {path}: {rows:#?}"))
}

#[test]
fn a_stream_that_goes_one_way_is_said_to() {
    const RECEIVE: &str = "import socket, sys\n\
        c = socket.create_server(('127.0.0.1', int(sys.argv[1]))).accept()[0]\n\
        while c.recv(4096): pass\n";
    const SEND: &str = "import socket, sys, time\n\
        s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n\
        while True:\n\
        \ts.send(b'x' * 100)\n\
        \ttime.sleep(0.001)\n";
    if !can_run(true, &["python3"]) {
        return;
    }
    let instance = Instance::start();
    let port = free_port();
    let start = |code: &str| {
        let mode = Mode::Accelerated(&instance);
        Launch::new(mode, "python3", ["-c", code, &port.to_string()]).spawn()
    };
    let mut receiver = start(RECEIVE).listening(port);
    let mut sender = start(SEND);
    let one_way = || {
        let rows = instance.wait_for_status(PATIENCE, |rows| {
            let shows = |pid, path| {
                rows.iter()
                    .any(|row| row.pid == pid && row.path == path && row.reason == "one-way")
            };
            shows(sender.pid(), "shm/tcp") && shows(receiver.pid(), "tcp/shm")
        });
        rows.unwrap_or_else(|rows| panic!("{rows:#?}"))
    };
    let fd = one_way().iter().find(|row| row.pid == sender.pid()).map(|row| row.fd);
    instance.move_connection(sender.pid(), fd.unwrap(), "tcp").unwrap();
    let on_tcp = instance.wait_for_status(PATIENCE, |rows| rows.iter().all(|row| row.path == "tcp"));
    assert!(on_tcp.is_ok(), "{on_tcp:#?}");
    // The receiver wakes meanwhile, and learns what the sender wants.
    let told = instance.wait_for_status(PATIENCE, |rows| {
        let says = |pid, reason| rows.iter().any(|row| row.pid == pid && row.reason == reason);
        says(sender.pid(), "requested") && says(receiver.pid(), "peer-requested")
    });
    assert!(told.is_ok(), "{told:#?}");
    instance.move_connection(sender.pid(), fd.unwrap(), "auto").unwrap();
    one_way();
    // There is nothing to move the other way: the wish is met.
    let moved = instance.move_and_wait(sender.pid(), fd.unwrap(), "shm");
    assert!(moved.is_ok_and(|said| said.contains("its end sends next")));
    sender.kill();
    receiver.kill();
}

/// Whether bytes were sent before the connection had a lane, or so many that it got one meanwhile.
#[test]
fn an_answer_goes_by_the_lane_to_who_has_shut_its_own_direction() {
    const ANSWER: u64 = 200_000_000;
    const ASK: &str = "import hashlib, socket, sys, time\n\
        s, got, sum = socket.create_connection(('127.0.0.1', int(sys.argv[1]))), 0, hashlib.md5()\n\
        s.sendall(bytes(int(sys.argv[3])))\n\
        s.shutdown(socket.SHUT_WR)\n\
        while got < int(sys.argv[2]):\n\
        \tpart = s.recv(262144)\n\
        \tgot += len(part)\n\
        \tsum.update(part)\n\
        print(sum.hexdigest(), flush=True)\n\
        time.sleep(60)\n";
    const ANSWER_IT: &str = "import hashlib, random, socket, sys, time\n\
        c = socket.create_server(('127.0.0.1', int(sys.argv[1]))).accept()[0]\n\
        left, sum, source = int(sys.argv[2]), hashlib.md5(), random.Random(7).randbytes(1 << 20)\n\
        while c.recv(65536): pass\n\
        while left:\n\
        \tat = left % 999_983\n\
        \tsent = c.send(source[at:at + min(left, 65536)])\n\
        \tsum.update(source[at:at + sent])\n\
        \tleft -= sent\n\
        print(sum.hexdigest(), flush=True)\n\
        time.sleep(60)\n";
    if !can_run(true, &["python3"]) {
        return;
    }
    let instance = Instance::start();
    for asked in [10, 20_000_000] {
        let port = free_port();
        let start = |code: &str| {
            let arguments = ["-c", code, &port.to_string(), &ANSWER.to_string(), &asked.to_string()];
            Launch::new(Mode::Accelerated(&instance), "python3", arguments).spawn()
        };
        let mut server = start(ANSWER_IT).listening(port);
        let mut client = start(ASK);
        let is_done = wait_until(2 * PATIENCE, || {
            client.output().ends_with('\n') && server.output().ends_with('\n')
        });
        assert!(is_done, "{}{}", client.errors(), server.errors());
        assert_eq!(client.output(), server.output());
        let rows = instance.status();
        let row = |pid| rows.iter().find(|row| row.pid == pid).unwrap();
        let (sent, received) = (row(server.pid()), row(client.pid()));
        assert_eq!((sent.bytes_sent, received.bytes_received), (ANSWER, ANSWER));
        // The rest goes before the ends have been matched.
        assert!(sent.fast_bytes_sent > ANSWER / 2, "{asked}: {rows:#?}");
        assert!(
            sent.path.starts_with("shm/") && received.path.ends_with("/shm"),
            "{asked}: {rows:#?}"
        );
        server.kill();
        client.kill();
    }
}

/// What is wanted of a connection holds behind the end of one of its directions.
#[test]
fn an_answer_behind_a_half_close_goes_where_it_is_wanted() {
    const ASK: &str = "import os, socket, sys, time\n\
        s = socket.create_connection(('127.0.0.1', int(sys.argv[1])))\n\
        while not os.path.exists(sys.argv[2]): s.send(b'ping'), s.recv(4, socket.MSG_WAITALL)\n\
        s.shutdown(socket.SHUT_WR)\n\
        while s.recv(65536): pass\n";
    const ANSWER_IT: &str = "import socket, sys, time\n\
        c = socket.create_server(('127.0.0.1', int(sys.argv[1]))).accept()[0]\n\
        while ping := c.recv(4): c.send(ping)\n\
        print('end', flush=True)\n\
        while True:\n\
        \tc.send(bytes(1000))\n\
        \ttime.sleep(0.001)\n";
    if !can_run(true, &["python3"]) {
        return;
    }
    let instance = Instance::start();
    let (port, end) = (free_port(), instance.scratch("end"));
    let start = |code: &str| {
        let arguments = ["-c", code, &port.to_string(), &end.to_string_lossy()];
        Launch::new(Mode::Accelerated(&instance), "python3", arguments).spawn()
    };
    let mut server = start(ANSWER_IT).listening(port);
    let mut client = start(ASK);
    let row = |rows: &[Row]| rows.iter().find(|row| row.pid == server.pid()).cloned();
    let await_row = |meets: &dyn Fn(&Row) -> bool| {
        let rows = instance.wait_for_status(PATIENCE, |rows| row(rows).is_some_and(|row| meets(&row)));
        row(&rows.unwrap_or_else(|rows| panic!("{rows:#?}"))).unwrap()
    };
    let fd = await_row(&|row| row.path == "shm").fd;
    instance.move_connection(server.pid(), fd, "tcp").unwrap();
    await_row(&|row| row.path == "tcp");
    std::fs::write(&end, "").unwrap();
    assert!(wait_until(PATIENCE, || server.output().contains("end")));
    let before = instance.status();
    let sent = row(&before).unwrap().bytes_sent;
    let after = await_row(&|row| row.bytes_sent > sent + 100_000);
    assert_eq!((&*after.path, &*after.reason), ("tcp", "requested"));
    instance.move_connection(server.pid(), fd, "auto").unwrap();
    await_row(&|row| row.path == "shm/tcp" && row.reason == "one-way");
    server.kill();
    client.kill();
}

/// A receiver with a backlog of raw bytes takes them before it takes anything off the lane, which is full meanwhile.
#[test]
fn a_backlog_in_the_kernel_is_no_stall() {
    if can_run(true, &["python3"]) {
        // A receiver that is kept from the processor for long enough looks like one that takes nothing off the lane.
        where_prompt(&["has left its lane"], receive_a_backlog);
    }
}

fn receive_a_backlog() {
    const SENT: u64 = 16_000_000;
    const RECEIVE: &str = "import os, socket, sys, time\n\
        listener = socket.create_server(('127.0.0.1', int(sys.argv[1])))\n\
        while not os.path.exists(sys.argv[3]): time.sleep(0.01)\n\
        c, place, left = listener.accept()[0], bytearray(64), int(sys.argv[2])\n\
        while left: left -= c.recv_into(place)\n\
        time.sleep(60)\n";
    const SEND: &str = "import socket, sys, time\n\
        SO_SNDBUFFORCE = 32\n\
        s, left = socket.create_connection(('127.0.0.1', int(sys.argv[1]))), int(sys.argv[2])\n\
        s.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, 4000000)\n\
        s.settimeout(0.2)\n\
        try:\n\
        \twhile True: left -= s.send(bytes(4096))\n\
        except TimeoutError: open(sys.argv[3], 'w').close()\n\
        s.settimeout(None)\n\
        while left > 0: left -= s.send(bytes(min(left, 4096)))\n\
        time.sleep(60)\n";
    let instance = Instance::start();
    let (port, full) = (free_port(), instance.scratch("full"));
    let start = |code: &str| {
        let mode = Mode::Accelerated(&instance);
        let full = full.to_string_lossy().into_owned();
        Launch::new(
            mode,
            "python3",
            ["-c", code, &port.to_string(), &SENT.to_string(), &full],
        )
        .spawn()
    };
    let mut receiver = start(RECEIVE).listening(port);
    let mut sender = start(SEND);
    let received = instance.wait_for_status(PATIENCE, |rows| {
        let has_all = |row: &Row| row.pid == receiver.pid() && row.bytes_received == SENT;
        rows.iter().any(has_all)
    });
    let rows = received.unwrap_or_else(|rows| panic!("{rows:#?}"));
    for row in rows {
        assert!(row.switches <= 1 && row.is_fast(), "it has left its lane: {row:#?}");
    }
    sender.kill();
    receiver.kill();
}

/// Bytes that came before the lane lie before those in it, and nobody takes any of them before all of the message is
/// there.
#[test]
fn a_message_from_before_the_lane_on_is_seen_whole() {
    const SENT: u64 = 9_000_000;
    const RECEIVE: &str = "import fcntl, socket, sys, termios, time\n\
        SO_RCVBUFFORCE = 33\n\
        listener, seen, sent = socket.socket(), 0, int(sys.argv[2])\n\
        listener.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, 16000000)\n\
        listener.bind(('127.0.0.1', int(sys.argv[1])))\n\
        listener.listen()\n\
        c = listener.accept()[0]\n\
        while (ping := c.recv(2000, socket.MSG_WAITALL))[0]: c.send(ping)\n\
        until = time.monotonic() + 30\n\
        while seen < sent and time.monotonic() < until:\n\
        \tseen = int.from_bytes(fcntl.ioctl(c, termios.FIONREAD, bytes(4)), sys.byteorder)\n\
        left, got = sent, True\n\
        while left and got:\n\
        \tgot = c.recv(65536)\n\
        \tleft -= len(got)\n\
        print(seen, left, flush=True)\n\
        time.sleep(60)\n";
    const SEND: &str = "import os, select, socket, sys, time\n\
        s, left = socket.create_connection(('127.0.0.1', int(sys.argv[1]))), int(sys.argv[2])\n\
        while not os.path.exists(sys.argv[3] + '1'): s.send(b'p' * 2000), s.recv(2000, socket.MSG_WAITALL)\n\
        s.send(bytes(2000))\n\
        left -= s.send(bytes(30000))\n\
        print('raw', flush=True)\n\
        while not os.path.exists(sys.argv[3] + '2'): time.sleep(0.01)\n\
        s.setblocking(False)\n\
        room = select.poll()\n\
        room.register(s, select.POLLOUT)\n\
        while left:\n\
        \ttry: left -= s.send(bytes(min(left, 50000)))\n\
        \texcept BlockingIOError: room.poll()\n\
        time.sleep(60)\n";
    if !can_run(true, &["python3"]) {
        return;
    }
    let instance = Instance::start();
    let port = free_port();
    let step = |number: u32| instance.scratch(&format!("step{number}"));
    let start = |code: &str| {
        let step = instance.scratch("step").to_string_lossy().into_owned();
        let arguments = ["-c", code, &port.to_string(), &SENT.to_string(), &step];
        Launch::new(Mode::Accelerated(&instance), "python3", arguments).spawn()
    };
    let mut receiver = start(RECEIVE).listening(port);
    let mut sender = start(SEND);
    let rows = await_path(&instance, 2, "shm", |_| true);
    let fd = rows.iter().find(|row| row.pid == sender.pid()).unwrap().fd;
    instance.move_connection(sender.pid(), fd, "tcp").unwrap();
    await_path(&instance, 2, "tcp", |_| true);
    std::fs::write(step(1), "").unwrap();
    assert!(wait_until(PATIENCE, || sender.output().contains("raw")));
    instance.move_connection(sender.pid(), fd, "auto").unwrap();
    std::fs::write(step(2), "").unwrap();
    let is_done = wait_until(2 * PATIENCE, || receiver.output().ends_with('\n'));
    assert!(is_done, "{}{}", receiver.errors(), sender.errors());
    assert_eq!(receiver.output(), format!("{SENT} 0\n"));
    let fast = |row: &Row| row.pid == receiver.pid() && row.fast_bytes_received > 1_000_000;
    let rows = instance.status();
    assert!(rows.iter().any(fast), "{rows:#?}");
    sender.kill();
    receiver.kill();
}

fn both_directions_move(waiting: &str) {
    let instance = Instance::start();
    let mode = Mode::Accelerated(&instance);
    let mut server = Server::start(mode, waiting);
    let mut client = server
        .client(mode, &format!("--seconds 1000 --mode {waiting} --seed 9"))
        .spawn();
    for pid in [client.pid(), server.program.pid()] {
        let rows = await_path(&instance, 2, "shm", |_| true);
        let fd = rows.iter().find(|row| row.pid == pid).map(|row| row.fd).unwrap();
        for (wish, path) in [("tcp", "tcp"), ("auto", "shm"), ("tcp", "tcp"), ("shm", "shm")] {
            instance.move_connection(pid, fd, wish).unwrap();
            await_path(&instance, 2, path, |_| true);
        }
    }
    assert!(client.is_running(), "{}", client.output());
    client.kill();
    server.assert_sound();
}

#[test]
fn one_wish_moves_both_directions_of_blocking_ends() {
    both_directions_move("blocking");
}

#[test]
fn one_wish_moves_both_directions_of_event_driven_ends() {
    both_directions_move("edge");
}

/// Each end says why it is on TCP, also after the end that asked first has taken its wish back.
#[test]
fn wishes_of_both_ends_are_told_apart() {
    let instance = Instance::start();
    let mode = Mode::Accelerated(&instance);
    let mut server = Server::start(mode, "blocking");
    let mut client = server.client(mode, "--seconds 1000 --mode blocking --seed 11").spawn();
    let pids = [client.pid(), server.program.pid()];
    let rows = await_path(&instance, 2, "shm", |_| true);
    let fd = |pid| rows.iter().find(|row| row.pid == pid).map(|row| row.fd).unwrap();
    let ends = pids.map(|pid| (pid, fd(pid)));
    let says = |reasons: [&str; 2]| {
        let told = instance.wait_for_status(PATIENCE, |rows| {
            let tells = |pid, reason| rows.iter().any(|row| row.pid == pid && row.reason == reason);
            pids.into_iter().zip(reasons).all(|(pid, reason)| tells(pid, reason))
        });
        assert!(told.is_ok(), "{reasons:?}: {told:#?}");
    };
    let shm = rows[0].reason.clone();
    let asks = |end: usize, wish| instance.move_connection(ends[end].0, ends[end].1, wish).unwrap();
    asks(0, "tcp");
    says(["requested", "peer-requested"]);
    asks(1, "tcp");
    says(["requested", "requested"]);
    asks(0, "auto");
    says(["peer-requested", "requested"]);
    asks(1, "auto");
    says([&shm, &shm]);
    await_path(&instance, 2, "shm", |_| true);
    client.kill();
    server.assert_sound();
}

#[test]
fn an_end_that_only_receives_moves_what_it_receives() {
    if !can_run(false, &["iperf3"]) {
        return;
    }
    let instance = Instance::start();
    let mode = Mode::Accelerated(&instance);
    let port = free_port();
    let listen = format!("-s -p {port} -B 127.0.0.1");
    let server = Launch::new(mode, "iperf3", listen.split_whitespace())
        .spawn()
        .listening(port);
    let connect = format!("-c 127.0.0.1 -p {port} -t 1000");
    let client = Launch::new(mode, "iperf3", connect.split_whitespace()).spawn();
    // Beside the connection that carries the data there is one that steers it.
    let sends = |row: &&Row| row.pid == client.pid() && row.bytes_sent > 10_000_000;
    await_path(&instance, 1, "shm/tcp", sends);
    let receiver = instance
        .status()
        .into_iter()
        .find(|row| row.pid == server.pid() && row.bytes_received > 1_000_000)
        .unwrap();
    for (wish, path) in [("tcp", "tcp"), ("auto", "shm/tcp")] {
        instance.move_connection(server.pid(), receiver.fd, wish).unwrap();
        await_path(&instance, 1, path, sends);
    }
}
