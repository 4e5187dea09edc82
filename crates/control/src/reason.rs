//! Why a connection is not on a faster path.

macro_rules! reasons {
    ($($(#[doc = $doc:literal])* $name:ident = $number:literal, $code:literal, $text:literal, $advice:literal;)*) => {
        /// Why a connection end uses the path it uses. The numbers are part of the counters' layout.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u16)]
        pub enum Reason { $(#[doc = $text] $name = $number,)* }

        impl Reason {
            /// Every reason there is.
            pub const ALL: &'static [Self] = &[$(Self::$name),*];

            /// The reason numbered `number`, if there is one.
            pub fn from_number(number: u16) -> Option<Self> {
                match number { $($number => Some(Self::$name),)* _ => None }
            }

            /// A short stable word for scripts.
            pub fn code(self) -> &'static str {
                match self { $(Self::$name => $code,)* }
            }

            /// One sentence for people.
            pub fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }

            /// What to do about it; empty when nothing needs doing.
            pub fn advice(self) -> &'static str {
                match self { $(Self::$name => $advice,)* }
            }
        }
    };
}

reasons! {
    Accelerated = 0, "accelerated", "The connection is on its fastest path.", "";
    NotYet = 1, "not-yet", "The connection has not yet carried enough to be worth matching.",
        "Nothing; or `--offer now` to match at the first byte.";
    Offered = 2, "offered", "Offered to viaductd; the other end has not offered itself.",
        "Start the other end's program with `viaduct run` under the same runtime directory, as the same user unless viaductd is root's; a peer on another machine stays on TCP.";
    NoDaemon = 3, "no-daemon", "No viaductd answers in the runtime directory.",
        "Start viaductd, or use `viaduct run`, which starts one if it can; that one leaves a minute after the last program under Viaduct has ended.";
    Version = 4, "version", "viaductd is of another version.", "Restart viaductd, then the program.";
    PolicyTcp = 5, "policy-tcp", "The policy says plain TCP.", "Remove `--path tcp` or VIADUCT_PATH=tcp.";
    RuleTcp = 6, "rule-tcp", "A rule keeps this connection on TCP.", "Look for the rule in the configuration file.";
    Pairing = 7, "pairing", "Matched; a direction moves to shared memory when its sender next sends.", "";
    LimitSegments = 8, "limit-segments", "The user holds as many segments as viaductd allows.",
        "Raise `segments_per_user` in the configuration and restart viaductd, or close connections.";
    LimitMemory = 9, "limit-memory", "The user's segments may grow to as much memory as viaductd allows.",
        "Raise `memory_per_user` in the configuration and restart viaductd, or close connections.";
    NoMemory = 10, "no-memory", "The machine could not give memory, or room for one more mapping, for a segment.",
        "Free memory, raise the memory limit of the control group, or raise vm.max_map_count, which `viaduct doctor` shows.";
    NoDescriptors = 11, "no-descriptors", "The descriptor limit of the program or of viaductd is reached.", "Raise `ulimit -n`.";
    Ambiguous = 12, "ambiguous", "More than one end matches, so no pair can be proved.",
        "Run viaductd as root: the kernel's ticket is never ambiguous.";
    NoTicket = 13, "no-ticket", "viaductd received no kernel ticket for this end.",
        "See `viaduct doctor`: a control group outside viaductd's, or a kernel without the hook.";
    Requested = 14, "requested", "Moved by `viaduct path`.", "`viaduct path PID FD auto` gives the choice back.";
    PeerRequested = 15, "peer-requested", "The other end asked for TCP.", "Ask `viaduct explain` at the other end.";
    LaneStall = 16, "lane-stall", "The peer did not read for a while, so the bytes went to the kernel's buffers.", "";
    UrgentData = 17, "urgent-data", "The program uses urgent data, which only TCP carries.", "";
    ReceiveLowWater = 18, "low-water", "The program set a receive low-water mark.", "";
    TransportLayer = 19, "ulp", "The program gave the socket to a kernel protocol (TLS offload).", "Turn kernel TLS off in the program.";
    ZeroCopy = 20, "zerocopy", "The program sends or receives without copies.", "Turn zero copy off in the program.";
    SocketOption = 21, "socket-option", "The program set an option that only the kernel can honour.", "";
    Stdio = 22, "stdio", "The program made a stdio stream of the socket, or has it as its standard input or output.", "";
    ForeignProcess = 23, "foreign-process", "The program passed the socket on to another program or process.", "Have one program open and serve the connection.";
    UnseenWait = 24, "unseen-wait", "The program waits for this socket in a way Viaduct does not see.",
        "have the program wait by select, poll, or an epoll set that is in one other at most.";
    Uncounted = 25, "uncounted", "The kernel's counts of this connection's bytes do not agree with each other, or with what the program has sent and received, so no switch point is safe.",
        "If the network short-cuts TCP by BPF (a map of sockets), leave what is to be accelerated out of that.";
    PeerViolation = 26, "peer-violation", "The other end wrote nonsense into the shared segment.", "Find out what the other program is.";
    FastOpen = 27, "fast-open", "The connection was opened with TCP Fast Open.", "";
    Splice = 28, "splice", "The program moves bytes inside the kernel (splice, tee).", "";
    SharedEnd = 31, "shared-end", "Several processes use this end.", "";
    HalfClosed = 34, "half-closed", "The program shut down its receiving direction, or both, before the connection was matched.", "";
    UnseenCalls = 35, "unseen-calls", "The program has loaded code whose calls Viaduct does not see.", "Have the program load it without dlmopen, or what it opens with RTLD_DEEPBIND by a path and before it starts threads.";
    UnseenRing = 42, "unseen-ring", "The program has a ring (io_uring) by which the kernel moves bytes, and of which Viaduct sees nothing.", "Have the program take its other way, epoll, if it has one, or rings by the shared library liburing.";
    OneWay = 36, "one-way", "One direction is on shared memory; the other moves when its sender next sends.", "";
    NotStream = 33, "not-stream", "The socket is not a TCP connection.", "";
    Resources = 32, "resources", "The program has more connections than Viaduct keeps records for.", "";
    LimitProcesses = 37, "limit-processes", "The user has as many programs connected to viaductd as it allows.",
        "Raise `processes_per_user` in the configuration and restart viaductd, or end programs that run under Viaduct.";
    LimitOffers = 38, "limit-offers", "The user has as many connections waiting for their other ends' offers as viaductd allows.",
        "Start the other ends' programs under Viaduct, keep connections that have none on TCP by a rule, or raise `offers_per_user` in the configuration and restart viaductd.";
    PassedOn = 40, "passed-on", "The connection was opened by another program or process, which may still use it.",
        "Have whoever opened it close its own descriptors once it has passed it on, before it has a lane, and have viaductd run as root, who alone can tell; or have the program that serves the connection make its socket itself.";
    SlowDaemon = 41, "daemon-slow", "viaductd is there, but did not answer in time; the connection is offered again when it is next used.",
        "Nothing, if the machine was busy for a moment. If it stays, see whether viaductd is stopped or starved of processor time: `viaduct doctor`.";
    Misspelt = 39, "misspelt", "A VIADUCT_ variable of the program's environment makes no sense, so all its connections stay on TCP.",
        "Correct VIADUCT_PATH, VIADUCT_SPIN, VIADUCT_OFFER or VIADUCT_RULES, or start the program by `viaduct run`, which says what is wrong.";
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_and_codes_are_unique() {
        let mut codes = std::collections::HashSet::new();
        for reason in Reason::ALL {
            assert_eq!(Reason::from_number(*reason as u16), Some(*reason));
            assert!(codes.insert(reason.code()), "{}", reason.code());
        }
    }
}
