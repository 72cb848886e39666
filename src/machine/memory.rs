//! How much memory is there for a job, and how much has this process used?
//!
//! The host's figure is wrong inside a container: one with a quarter of the memory still shows all of it in /proc/meminfo, and a job that
//! believes it is killed at night. So the answer is the least of what the host has and what each control group above the
//! process has left, of both versions. Pages of the file cache count as free: the kernel gives them up first, in the host's own figure too.

use std::fs::read_to_string;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// What memory there is, all in bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Memory {
    /// All that the host has.
    pub host_bytes: u64,
    /// What of it is available, as the host sees it.
    pub host_available_bytes: u64,
    /// The memory control groups above this process, its own first.
    pub groups: Vec<Group>,
}

/// One memory control group.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Group {
    /// Its folder.
    pub folder: PathBuf,
    /// What it allows, if it sets a limit.
    pub limit_bytes: Option<u64>,
    /// What is charged to it, pages of the file cache included.
    pub used_bytes: u64,
    /// Pages of the file cache among that, which the kernel gives up when memory is short.
    pub cache_bytes: u64,
}

impl Memory {
    /// Asks the system; 0 and no groups where it does not say.
    pub fn look() -> Memory {
        let text = |path: &str| read_to_string(path).unwrap_or_default();
        let host = text("/proc/meminfo");
        let folders = group_folders(&text("/proc/self/cgroup"), &text("/proc/self/mountinfo"));
        let group = |folder: &PathBuf| Group::of(folder, &|name| read_to_string(folder.join(name)).ok());
        Memory {
            host_bytes: kilobytes(&host, "MemTotal:").unwrap_or(0),
            host_available_bytes: meminfo_available(&host).unwrap_or(0),
            groups: folders.iter().filter_map(group).collect(),
        }
    }

    /// Bytes that a job may still take: the least of the host's available memory and the room in every group.
    pub fn available_bytes(&self) -> u64 {
        self.groups.iter().filter_map(Group::left_bytes).fold(self.host_available_bytes, u64::min)
    }
}

/// [`Memory::available_bytes`] as of now.
pub fn available_bytes() -> u64 {
    Memory::look().available_bytes()
}

/// Most memory that this process has held at once, in bytes (VmHWM); 0 where the system does not say.
pub fn peak_bytes() -> u64 {
    read_to_string("/proc/self/status").ok().and_then(|text| kilobytes(&text, "VmHWM:")).unwrap_or(0)
}

/// The number after `name` at the start of a line.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next()?.parse().ok())
}

/// The same in bytes, where the system writes kB and means 1,024.
fn kilobytes(text: &str, name: &str) -> Option<u64> {
    field(text, name)?.checked_mul(1_024)
}

/// What the host has, by /proc/meminfo; old kernels do not estimate, there free memory alone counts.
fn meminfo_available(text: &str) -> Option<u64> {
    kilobytes(text, "MemAvailable:").or_else(|| kilobytes(text, "MemFree:"))
}

/// From here on a number is how a control group of version 1 says that it sets no limit.
const NO_LIMIT: u64 = 1 << 62;

impl Group {
    /// The group in `folder`, whose files `read` gives by name; None where it does not account for memory.
    fn of(folder: &Path, read: &dyn Fn(&str) -> Option<String>) -> Option<Group> {
        let number = |name: &str| read(name)?.trim().parse::<u64>().ok();
        let (limit, used) = match number("memory.usage_in_bytes") {
            Some(used) => (number("memory.limit_in_bytes"), used),
            None => ([number("memory.max"), number("memory.high")].into_iter().flatten().min(), number("memory.current")?),
        };
        let stat = read("memory.stat").unwrap_or_default();
        let pages = |kind: &str| field(&stat, &format!("total_{kind} ")).or_else(|| field(&stat, &format!("{kind} "))).unwrap_or(0);
        Some(Group {
            folder: folder.to_path_buf(),
            limit_bytes: limit.filter(|&bytes| bytes < NO_LIMIT),
            used_bytes: used,
            cache_bytes: pages("inactive_file").saturating_add(pages("active_file")),
        })
    }

    /// What is left of its limit, if it sets one.
    pub fn left_bytes(&self) -> Option<u64> {
        Some(self.limit_bytes?.saturating_sub(self.used_bytes.saturating_sub(self.cache_bytes)))
    }
}

/// The folders of the memory control groups above this process, its own first, by the texts of /proc/self/cgroup and
/// /proc/self/mountinfo.
fn group_folders(cgroup: &str, mountinfo: &str) -> Vec<PathBuf> {
    let mut folders = Vec::new();
    for line in cgroup.lines() {
        let mut parts = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(group)) = (parts.next(), parts.next()) else { continue };
        let version = match controllers {
            "" => Version::Two,
            names if names.split(',').any(|name| name == "memory") => Version::One,
            _ => continue,
        };
        for mount in mountinfo.lines().filter_map(|line| Mount::parse(line, version)) {
            // Inside a container the mount may begin at the container's group, or the path be one that cannot be seen from here.
            let inside = Path::new(group).strip_prefix(&mount.root).unwrap_or(Path::new(""));
            let visible = inside.components().all(|part| matches!(part, std::path::Component::Normal(_)));
            let mut own = mount.point.clone();
            own.extend(inside.components().filter(|_| visible));
            folders.extend(own.ancestors().take_while(|folder| folder.starts_with(&mount.point)).map(Path::to_path_buf));
        }
    }
    folders
}

#[derive(Clone, Copy, PartialEq)]
enum Version {
    One,
    Two,
}

/// Where a hierarchy of control groups can be seen.
struct Mount {
    /// The group that lies at `point`.
    root: PathBuf,
    point: PathBuf,
}

impl Mount {
    /// A line of mountinfo, if it mounts memory control groups of this version.
    fn parse(line: &str, version: Version) -> Option<Mount> {
        let (before, after) = line.split_once(" - ")?;
        let mut kind = after.split(' ');
        let fits = match kind.next()? {
            "cgroup2" => version == Version::Two,
            "cgroup" => version == Version::One && kind.next_back()?.split(',').any(|option| option == "memory"),
            _ => false,
        };
        let mut fields = before.split(' ').skip(3);
        let (root, point) = (fields.next()?, fields.next()?);
        fits.then(|| Mount { root: unescape(root).into(), point: unescape(point).into() })
    }
}

/// Mountinfo writes a space as \040 and so on.
pub(super) fn unescape(text: &str) -> String {
    [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")]
        .iter()
        .fold(text.to_owned(), |text, (code, c)| text.replace(code, c))
}

#[cfg(test)]
mod tests {
    use super::*;

    const V1: &str = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime shared:4 - cgroup cgroup rw,memory
36 31 0:33 / /sys/fs/cgroup/devices rw,relatime - cgroup cgroup rw,devices
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

    fn paths(folders: &[PathBuf]) -> Vec<&str> {
        folders.iter().map(|folder| folder.to_str().expect("text")).collect()
    }

    #[test]
    fn groups_are_followed_to_the_top_of_both_versions() {
        let folders = group_folders("9:name=systemd:/\n4:cpu,memory:/job/a b\n3:cpuset:/x\n0::/slice\n", V1);
        assert_eq!(
            paths(&folders),
            [
                "/sys/fs/cgroup/memory/job/a b",
                "/sys/fs/cgroup/memory/job",
                "/sys/fs/cgroup/memory",
                "/sys/fs/cgroup/unified/slice",
                "/sys/fs/cgroup/unified",
            ]
        );
    }

    #[test]
    fn a_container_sees_its_own_group_alone() {
        let mount = "35 31 0:32 /docker/ab\\040c /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory";
        assert_eq!(paths(&group_folders("4:memory:/docker/ab c/in", mount)), ["/sys/fs/cgroup/memory/in", "/sys/fs/cgroup/memory"]);
        assert_eq!(paths(&group_folders("4:memory:/elsewhere", mount)), ["/sys/fs/cgroup/memory"]);
        let two = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup rw,nsdelegate";
        assert_eq!(paths(&group_folders("0::/../../other", two)), ["/sys/fs/cgroup"]);
        assert!(group_folders("torn\n0:", "torn - \n - cgroup2").is_empty());
    }

    fn room_of(files: &[(&str, &str)]) -> Option<u64> {
        let read = |name: &str| files.iter().find(|(file, _)| *file == name).map(|(_, text)| (*text).to_owned());
        Group::of(Path::new("/group"), &read)?.left_bytes()
    }

    #[test]
    fn room_is_the_limit_less_what_cannot_be_given_up() {
        let stat = "cache 9\ninactive_file 1\nactive_file 1\ntotal_inactive_file 100\ntotal_active_file 20\n";
        assert_eq!(room_of(&[("memory.limit_in_bytes", "1000\n"), ("memory.usage_in_bytes", "500\n"), ("memory.stat", stat)]), Some(620));
        let two = [("memory.max", "1000\n"), ("memory.high", "max\n"), ("memory.current", "500\n"), ("memory.stat", "inactive_file 30\n")];
        assert_eq!(room_of(&two), Some(530));
        assert_eq!(room_of(&[("memory.max", "1000"), ("memory.high", "800"), ("memory.current", "900")]), Some(0));
        assert_eq!(room_of(&[("memory.max", "max\n"), ("memory.high", "max\n"), ("memory.current", "900\n")]), None);
        let unlimited = [("memory.limit_in_bytes", "9223372036854771712\n"), ("memory.usage_in_bytes", "500\n")];
        assert_eq!(room_of(&unlimited), None);
        assert_eq!(room_of(&[]), None);
    }

    #[test]
    fn the_hosts_figure_is_in_kib() {
        assert_eq!(meminfo_available("MemTotal: 9 kB\nMemFree:    1 kB\nMemAvailable:   3 kB\n"), Some(3_072));
        assert_eq!(meminfo_available("MemFree:    2 kB\n"), Some(2_048));
        assert_eq!(meminfo_available("MemAvailable: 99999999999999999999 kB"), None);
    }

    #[test]
    fn this_process_has_used_and_may_use_memory() {
        assert!(available_bytes() > 1 << 20);
        let before = peak_bytes();
        assert!(before > 1 << 16);
        let bytes = std::hint::black_box(vec![1u8; 64 << 20]).len() as u64;
        assert!(peak_bytes() >= before.max(bytes), "what was held once stays in the peak");
    }
}
