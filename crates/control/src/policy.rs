//! What `viaduct run` tells the preload, in environment variables.
//!
//! | variable | values |
//! |---|---|
//! | `VIADUCT_PATH` | `auto`, `tcp`, `shm` |
//! | `VIADUCT_SPIN` | `auto`, `never`, `always` |
//! | `VIADUCT_OFFER` | `auto`, `now`, `wait` |
//! | `VIADUCT_RULES` | rules separated by `;`, the first that matches decides |
//!
//! A rule is an action (`never`, `tcp`, `auto`, `now`, `wait`) and conditions, all of which must hold, separated by
//! commas: `program=NAME` (a trailing `*` matches any rest; of a path the name behind its last `/` counts),
//! `addr=ADDRESS[/BITS]` (either end), `port=LOW[-HIGH]` (either end). Example:
//! `never,program=ssh*;now,addr=10.0.0.0/8,port=6379`.
//!
//! `never` keeps a connection on TCP as `tcp` does. Where it holds for every connection of a program, having neither
//! address nor port and no rule before it that could accelerate one, `viaduct run` also starts the program without the
//! library.
//!
//! Parsing allocates nothing, because it happens inside a guest.

use crate::Reason;
use crate::message::Address;
use core::net::IpAddr;

/// `VIADUCT_PATH`.
pub const PATH_VARIABLE: &str = "VIADUCT_PATH";
/// `VIADUCT_SPIN`.
pub const SPIN_VARIABLE: &str = "VIADUCT_SPIN";
/// `VIADUCT_OFFER`.
pub const OFFER_VARIABLE: &str = "VIADUCT_OFFER";
/// `VIADUCT_RULES`.
pub const RULES_VARIABLE: &str = "VIADUCT_RULES";

/// Rules beyond this many are an error.
pub const MAX_RULES: usize = 32;

/// Which paths may be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathPolicy {
    /// The fastest there is.
    Auto,
    /// Plain TCP only.
    Tcp,
    /// Shared memory wherever possible, without waiting for a connection to prove worth it.
    Shm,
}

/// Whether a waiter polls before it sleeps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpinPolicy {
    /// As long as it pays off.
    Auto,
    /// Sleep at once.
    Never,
    /// For 100 us in each wait, whoever else wants the processor, then sleep.
    Always,
}

/// When an end is offered to viaductd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OfferPolicy {
    /// Once the connection has shown itself worth it.
    Auto,
    /// At the first byte.
    Now,
    /// At once, and `connect` and `accept` wait up to 50 ms for the outcome. For tests.
    Wait,
}

/// What a rule does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Action {
    Never,
    Tcp,
    Offer(OfferPolicy),
}

/// A rule that applies to this program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rule {
    action: Action,
    network: [u8; 16],
    bits: u8,
    ports: (u16, u16),
}

impl Rule {
    /// Whether it holds for every connection of the program.
    fn matches_all(&self) -> bool {
        self.bits == 0 && self.ports == (0, u16::MAX)
    }

    fn matches(&self, address: &Address) -> bool {
        if !(self.ports.0..=self.ports.1).contains(&address.port) {
            return false;
        }
        let network = u128::from_be_bytes(self.network);
        let ip = u128::from_be_bytes(address.ip);
        let mask = u128::MAX.checked_shl(128 - u32::from(self.bits)).unwrap_or(0);
        (network ^ ip) & mask == 0
    }
}

/// A variable that does not parse.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PolicyError<'a> {
    /// The variable's name.
    pub variable: &'static str,
    /// What was expected there.
    pub expected: &'static str,
    /// What stands there instead.
    pub found: &'a str,
}

impl core::fmt::Display for PolicyError<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(
            f,
            "{}: expected {}, found '{}'",
            self.variable, self.expected, self.found
        )
    }
}

impl core::error::Error for PolicyError<'_> {}

/// The policy of one process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Which paths may be used.
    pub path: PathPolicy,
    /// Whether a waiter polls before it sleeps.
    pub spin: SpinPolicy,
    /// When an end is offered, where no rule says otherwise.
    pub offer: OfferPolicy,
    /// Why [`PathPolicy::Tcp`] holds, where it does.
    pub why_tcp: Reason,
    rules: [Option<Rule>; MAX_RULES],
    /// Whether there are any: asked at every message of a plain connection.
    has_rules: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            path: PathPolicy::Auto,
            spin: SpinPolicy::Auto,
            offer: OfferPolicy::Auto,
            why_tcp: Reason::PolicyTcp,
            rules: [None; MAX_RULES],
            has_rules: false,
        }
    }
}

impl Policy {
    /// What holds where the variables do not parse: plain TCP for everything.
    pub fn misspelt() -> Self {
        Self {
            path: PathPolicy::Tcp,
            why_tcp: Reason::Misspelt,
            ..Self::default()
        }
    }

    /// Parses the four variables' values for the program named `program`.
    ///
    /// # Errors
    /// The first variable that does not parse.
    pub fn parse<'a>(program: &str, lookup: impl Fn(&'static str) -> Option<&'a str>) -> Result<Self, PolicyError<'a>> {
        let path = match lookup(PATH_VARIABLE) {
            None | Some("" | "auto") => PathPolicy::Auto,
            Some("tcp") => PathPolicy::Tcp,
            Some("shm") => PathPolicy::Shm,
            Some(other) => return Err(error(PATH_VARIABLE, "auto, tcp or shm", other)),
        };
        let spin = match lookup(SPIN_VARIABLE) {
            None | Some("" | "auto") => SpinPolicy::Auto,
            Some("never") => SpinPolicy::Never,
            Some("always") => SpinPolicy::Always,
            Some(other) => return Err(error(SPIN_VARIABLE, "auto, never or always", other)),
        };
        let offer = match lookup(OFFER_VARIABLE) {
            None | Some("") => OfferPolicy::Auto,
            Some(word) => parse_offer(word).ok_or_else(|| error(OFFER_VARIABLE, "auto, now or wait", word))?,
        };
        let mut policy = Self {
            path,
            spin,
            offer,
            ..Self::default()
        };
        let mut places = policy.rules.iter_mut();
        for text in lookup(RULES_VARIABLE).unwrap_or("").split(';') {
            if text.trim().is_empty() {
                continue;
            }
            if let Some(rule) = parse_rule(program, text.trim())? {
                let place = places
                    .next()
                    .ok_or_else(|| error(RULES_VARIABLE, "at most 32 rules for one program", text.trim()))?;
                *place = Some(rule);
                policy.has_rules = true;
            }
        }
        // Where the program stays on TCP anyway, no rule is the reason.
        if policy.path != PathPolicy::Tcp && policy.is_never() {
            (policy.path, policy.why_tcp) = (PathPolicy::Tcp, Reason::RuleTcp);
        }
        Ok(policy)
    }

    /// Whether a `never` decides about every connection of this program, so that the program needs no library.
    pub fn is_never(&self) -> bool {
        let mut rules = self.rules.iter().flatten();
        let first = rules.find(|rule| rule.matches_all() || matches!(rule.action, Action::Offer(_)));
        first.is_some_and(|rule| rule.action == Action::Never)
    }

    /// Whether a rule could apply to some connection of this program; if not, addresses need not be asked for.
    #[inline]
    pub fn has_rules(&self) -> bool {
        self.has_rules
    }

    /// When the connection between `local` and `remote` is offered; `None`: never, a rule keeps it on TCP.
    pub fn offer_for(&self, local: &Address, remote: &Address) -> Option<OfferPolicy> {
        let rule = self
            .rules
            .iter()
            .flatten()
            .find(|rule| rule.matches(local) || rule.matches(remote));
        match rule.map(|rule| rule.action) {
            Some(Action::Never | Action::Tcp) => None,
            Some(Action::Offer(offer)) => Some(offer),
            None => Some(self.offer),
        }
    }
}

fn error<'a>(variable: &'static str, expected: &'static str, found: &'a str) -> PolicyError<'a> {
    PolicyError {
        variable,
        expected,
        found,
    }
}

fn parse_offer(word: &str) -> Option<OfferPolicy> {
    match word {
        "auto" => Some(OfferPolicy::Auto),
        "now" => Some(OfferPolicy::Now),
        "wait" => Some(OfferPolicy::Wait),
        _ => None,
    }
}

/// `Ok(None)`: a sound rule for other programs.
fn parse_rule<'a>(program: &str, text: &'a str) -> Result<Option<Rule>, PolicyError<'a>> {
    let mut words = text.split(',').map(str::trim);
    let action = match words.next() {
        Some("never") => Action::Never,
        Some("tcp") => Action::Tcp,
        Some(word) => Action::Offer(parse_offer(word).ok_or_else(|| {
            error(
                RULES_VARIABLE,
                "a rule to begin with never, tcp, auto, now or wait",
                word,
            )
        })?),
        None => return Ok(None),
    };
    let mut rule = Rule {
        action,
        network: [0; 16],
        bits: 0,
        ports: (0, u16::MAX),
    };
    let mut applies = true;
    for word in words {
        match word.split_once('=') {
            Some(("program", pattern)) => {
                applies &= program_matches(pattern, program)
                    .ok_or_else(|| error(RULES_VARIABLE, "program=NAME or program=PREFIX*", word))?;
            }
            Some(("addr", value)) => {
                (rule.network, rule.bits) = parse_network(value)
                    .ok_or_else(|| error(RULES_VARIABLE, "addr=ADDRESS or addr=ADDRESS/BITS", word))?;
            }
            Some(("port", value)) => {
                rule.ports =
                    parse_ports(value).ok_or_else(|| error(RULES_VARIABLE, "port=NUMBER or port=LOW-HIGH", word))?;
            }
            _ => return Err(error(RULES_VARIABLE, "program=, addr= or port= after the action", word)),
        }
    }
    Ok(applies.then_some(rule))
}

/// `None`: the pattern makes no sense: it is empty, means all of a directory, or has a `*` that is not its last
/// character.
fn program_matches(pattern: &str, program: &str) -> Option<bool> {
    // Programs are known by their names alone.
    let (is_path, pattern) = match pattern.rsplit_once('/') {
        Some((_, name)) => (true, name),
        None => (false, pattern),
    };
    let (name, is_prefix) = match pattern.strip_suffix('*') {
        Some(prefix) => (prefix, true),
        None => (pattern, false),
    };
    let matches = program == name || is_prefix && program.starts_with(name);
    let is_whole_directory = is_path && name.is_empty();
    (!pattern.is_empty() && !is_whole_directory && !name.contains('*')).then_some(matches)
}

fn parse_network(text: &str) -> Option<([u8; 16], u8)> {
    let (address, bits) = match text.split_once('/') {
        Some((address, bits)) => (address, Some(bits.parse::<u8>().ok()?)),
        None => (text, None),
    };
    match address.parse().ok()? {
        IpAddr::V4(v4) => {
            let bits = bits.unwrap_or(32);
            (bits <= 32).then(|| (v4.to_ipv6_mapped().octets(), bits + 96))
        }
        IpAddr::V6(v6) => {
            let bits = bits.unwrap_or(128);
            (bits <= 128).then(|| (v6.octets(), bits))
        }
    }
}

fn parse_ports(text: &str) -> Option<(u16, u16)> {
    let (low, high) = text.split_once('-').unwrap_or((text, text));
    let ports = (low.parse().ok()?, high.parse().ok()?);
    (ports.0 <= ports.1).then_some(ports)
}

#[cfg(test)]
mod tests {
    use super::*;
    use core::net::SocketAddr;

    fn policy(program: &str, rules: &'static str) -> Result<Policy, PolicyError<'static>> {
        Policy::parse(program, move |name| (name == RULES_VARIABLE).then_some(rules))
    }

    fn address(text: &str) -> Address {
        text.parse::<SocketAddr>().unwrap().into()
    }

    #[test]
    fn the_first_matching_rule_decides() {
        let policy = policy(
            "redis-server",
            "tcp,program=ssh*;now,addr=10.0.0.0/8,port=6379;tcp,port=6379-6380",
        )
        .unwrap();
        let (local, other) = (address("10.1.2.3:6379"), address("10.1.2.4:4000"));
        assert_eq!(policy.offer_for(&local, &other), Some(OfferPolicy::Now));
        assert_eq!(policy.offer_for(&address("[::1]:6380"), &address("[::1]:9")), None);
        assert_eq!(
            policy.offer_for(&address("[::1]:22"), &address("[::1]:9")),
            Some(OfferPolicy::Auto)
        );
    }

    #[test]
    fn rules_for_other_programs_do_not_count() {
        assert!(!policy("redis-server", "tcp,program=ssh*").unwrap().has_rules());
        assert!(policy("sshd", "tcp,program=ssh*").unwrap().has_rules());
    }

    #[test]
    fn of_a_path_the_name_of_the_program_counts() {
        for (rules, applies) in [
            ("tcp,program=/usr/sbin/sshd", true),
            ("tcp,program=sbin/ssh*", true),
            ("tcp,program=/usr/sbin/ssh", false),
            ("tcp,program=/sshd/redis-server", false),
        ] {
            assert_eq!(policy("sshd", rules).unwrap().has_rules(), applies, "{rules}");
        }
    }

    #[test]
    fn never_is_for_a_program_of_which_no_connection_may_be_accelerated() {
        for (rules, is_never) in [
            ("never", true),
            ("never,program=ssh*", true),
            ("never,addr=::/0", true),
            ("tcp,port=22;never,program=sshd;now", true),
            ("never,program=redis", false),
            ("never,port=22", false),
            ("never,addr=10.0.0.0/8", false),
            ("now,port=80;never,program=sshd", false),
            ("tcp;never", false),
        ] {
            let policy = policy("sshd", rules).unwrap();
            assert_eq!(policy.is_never(), is_never, "{rules}");
            let expected = match is_never {
                true => (PathPolicy::Tcp, Reason::RuleTcp),
                false => (PathPolicy::Auto, Reason::PolicyTcp),
            };
            assert_eq!((policy.path, policy.why_tcp), expected, "{rules}");
        }
        let anyway = Policy::parse("sshd", |name| match name {
            PATH_VARIABLE => Some("tcp"),
            RULES_VARIABLE => Some("never"),
            _ => None,
        });
        let anyway = anyway.unwrap();
        assert_eq!((anyway.is_never(), anyway.why_tcp), (true, Reason::PolicyTcp));
        let one_port = policy("p", "never,port=22").unwrap();
        let offer = |end| one_port.offer_for(&address(end), &address("[::1]:9"));
        assert_eq!((offer("[::1]:22"), offer("[::1]:23")), (None, Some(OfferPolicy::Auto)));
    }

    #[test]
    fn nonsense_is_an_error_that_names_variable_and_value() {
        for (rules, found) in [
            ("perhaps", "perhaps"),
            ("now;tcp,colour=red", "colour=red"),
            ("tcp,port=9-1", "port=9-1"),
            ("tcp,addr=10.0.0.0/33,port=1", "addr=10.0.0.0/33"),
            ("tcp,addr=x", "addr=x"),
            ("tcp,program=*sql", "program=*sql"),
            ("tcp,program=a**", "program=a**"),
            ("tcp,program=", "program="),
            // No program is known by its directory, and a rule for one is not to be one for all.
            ("tcp,program=/bin/", "program=/bin/"),
            ("tcp,program=/bin/*", "program=/bin/*"),
            ("tcp,program=/bin/*/a*b", "program=/bin/*/a*b"),
        ] {
            let error = policy("p", rules).unwrap_err();
            assert_eq!((error.variable, error.found), (RULES_VARIABLE, found), "{rules}");
        }
        let wrong = Policy::parse("p", |name| (name == SPIN_VARIABLE).then_some("sometimes")).unwrap_err();
        assert_eq!((wrong.variable, wrong.found), (SPIN_VARIABLE, "sometimes"));
    }

    #[test]
    fn a_network_of_no_bits_matches_everything() {
        let policy = policy("p", "tcp,addr=::/0").unwrap();
        assert_eq!(policy.offer_for(&address("1.2.3.4:5"), &address("1.2.3.5:5")), None);
    }
}
