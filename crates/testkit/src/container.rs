//! Containers as engines make them: by an OCI runtime, confined much as they do.

use crate::host::Host;
use crate::program::{Launch, Mode, Program};
use serde_json::{Value, json};
use std::fs::Permissions;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// The first of the users that those of a rootless container are outside.
const ROOTLESS: u32 = 100_000;

/// What engines leave a container's root of its capabilities.
const CAPABILITIES: [&str; 14] = [
    "CAP_CHOWN",
    "CAP_DAC_OVERRIDE",
    "CAP_FSETID",
    "CAP_FOWNER",
    "CAP_MKNOD",
    "CAP_NET_RAW",
    "CAP_SETGID",
    "CAP_SETUID",
    "CAP_SETFCAP",
    "CAP_SETPCAP",
    "CAP_NET_BIND_SERVICE",
    "CAP_SYS_CHROOT",
    "CAP_KILL",
    "CAP_AUDIT_WRITE",
];

/// System calls that engines refuse.
const REFUSED: [&str; 20] = [
    "add_key",
    "bpf",
    "fanotify_init",
    "io_uring_enter",
    "io_uring_register",
    "io_uring_setup",
    "kcmp",
    "keyctl",
    "mount",
    "move_pages",
    "name_to_handle_at",
    "open_by_handle_at",
    "perf_event_open",
    "pidfd_getfd",
    "pivot_root",
    "request_key",
    "setns",
    "umount2",
    "unshare",
    "userfaultfd",
];

/// A container with a root file system, mounts, processes, names and shared memory of its own, on the network of its
/// host. Gone on drop, with what runs in it.
#[derive(Debug)]
pub struct Container<'a> {
    name: String,
    host: &'a Host,
    rootless: bool,
    dir: TempDir,
}

impl<'a> Container<'a> {
    /// A container to come on `host`; `rootless`: with users of its own, too. Needs root.
    ///
    /// # Panics
    /// If there is no room for temporary files.
    pub fn new(host: &'a Host, rootless: bool) -> Self {
        let dir = tempfile::Builder::new()
            .prefix("viaduct-container-")
            .tempdir()
            .expect("room for temporary files");
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self {
            name: format!("viaduct-{}-{number}", std::process::id()),
            host,
            rootless,
            dir,
        }
    }

    /// Starts what `launch` says as the container's first process. It sees the programs of the machine, and `shared`
    /// where it is outside.
    ///
    /// # Panics
    /// If the runtime cannot be started.
    pub fn spawn(&self, launch: &Launch<'_>, shared: &[&Path]) -> Program {
        let root = self.dir.path().join("rootfs");
        std::fs::create_dir_all(root.join("dev")).expect("room for a directory");
        for link in ["bin", "lib", "lib64", "sbin"] {
            symlink(format!("usr/{link}"), root.join(link)).expect("room for a link");
        }
        std::fs::set_permissions(self.dir.path(), Permissions::from_mode(0o755)).expect("the directory is ours");
        // Who is root inside makes the places of mounts.
        let owner = if self.rootless { ROOTLESS } else { 0 };
        for dir in [&root, &root.join("dev")] {
            chown(dir, Some(owner), Some(owner)).expect("the directory is ours");
        }
        let file = self.dir.path().join("config.json");
        std::fs::write(&file, self.configuration(launch, shared).to_string()).expect("room for a file");
        // The runtime refuses machines with both kinds of control groups, though it is to make none.
        let prepare = "mount -t cgroup2 none /sys/fs/cgroup && exec \"$@\"";
        let mut arguments: Vec<PathBuf> = ["--mount", "sh", "-c", prepare, "sh", "crun"].map(Into::into).into();
        arguments.extend(self.runtime());
        arguments.extend(["run", "--bundle"].map(Into::into));
        arguments.extend([self.dir.path().into(), self.name.clone().into()]);
        Launch::new(Mode::Native, "unshare", arguments).on(self.host).spawn()
    }

    /// Options of the runtime, which keeps what it knows in our directory.
    fn runtime(&self) -> Vec<PathBuf> {
        let state = self.dir.path().join("state");
        vec!["--cgroup-manager=disabled".into(), "--root".into(), state]
    }

    fn configuration(&self, launch: &Launch<'_>, shared: &[&Path]) -> Value {
        let words: Vec<_> = launch
            .words()
            .iter()
            .map(|word| word.to_string_lossy().into_owned())
            .collect();
        let mut environment = vec!["PATH=/usr/sbin:/usr/bin:/sbin:/bin".to_owned()];
        environment.extend(
            launch
                .variables()
                .map(|(name, value)| format!("{}={}", name.display(), value.display())),
        );
        let mut mounts = vec![
            json!({"destination": "/proc", "type": "proc", "source": "proc"}),
            json!({"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=65536k"]}),
            json!({"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": ["nosuid", "noexec", "nodev", "size=65536k"]}),
            json!({"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev"]}),
        ];
        mounts.extend([Path::new("/usr")].iter().chain(shared).map(|path| {
            json!({"destination": path, "type": "bind", "source": path, "options": ["rbind", "ro", "nosuid", "nodev"]})
        }));
        let mut namespaces: Vec<_> = ["mount", "pid", "ipc", "uts"]
            .iter()
            .map(|kind| json!({"type": kind}))
            .collect();
        let mut ids = json!([]);
        if self.rootless {
            namespaces.push(json!({"type": "user"}));
            ids = json!([{"containerID": 0, "hostID": ROOTLESS, "size": 65_536}]);
        }
        json!({
            "ociVersion": "1.0.2",
            "hostname": "container",
            "root": {"path": "rootfs", "readonly": !self.rootless},
            "mounts": mounts,
            "process": {
                "args": words,
                "cwd": "/",
                "env": environment,
                "user": {"uid": 0, "gid": 0},
                "noNewPrivileges": true,
                "capabilities": {
                    "bounding": CAPABILITIES,
                    "effective": CAPABILITIES,
                    "permitted": CAPABILITIES,
                },
            },
            "linux": {
                "namespaces": namespaces,
                "uidMappings": ids,
                "gidMappings": ids,
                "maskedPaths": ["/proc/kcore", "/proc/keys", "/proc/timer_list", "/proc/scsi"],
                "readonlyPaths": ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"],
                "seccomp": {
                    "defaultAction": "SCMP_ACT_ALLOW",
                    "syscalls": [
                        {"names": REFUSED, "action": "SCMP_ACT_ERRNO"},
                        // Programs then use `clone`, whose flags engines can see.
                        {"names": ["clone3"], "action": "SCMP_ACT_ERRNO", "errnoRet": 38},
                    ],
                },
            },
        })
    }
}

impl Drop for Container<'_> {
    fn drop(&mut self) {
        let mut command = Command::new("crun");
        command.args(self.runtime()).args(["delete", "--force", &self.name]);
        let _ = command.stderr(std::process::Stdio::null()).status();
    }
}
