//! Where does this user keep what can be made again? The one question that is put to the environment.

use std::ffi::OsString;
use std::path::PathBuf;

/// The user's cache folder by the XDG rules: `$XDG_CACHE_HOME`, else `.cache` in `$HOME`. A relative path is no answer by those rules, and
/// a home that is not there is none that should be made.
pub fn cache_home() -> Option<PathBuf> {
    choose(ask("XDG_CACHE_HOME"), ask("HOME"))
}

/// The folder in it for what is learned of this machine and of models.
pub fn cache_folder() -> Option<PathBuf> {
    Some(cache_home()?.join("nightshift"))
}

#[expect(clippy::disallowed_methods, reason = "which folder is the user's is known to the environment alone; no answer depends on it")]
fn ask(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

fn choose(cache: Option<OsString>, home: Option<OsString>) -> Option<PathBuf> {
    let absolute = |path: Option<OsString>| path.map(PathBuf::from).filter(|path| path.is_absolute());
    absolute(cache).or_else(|| Some(absolute(home).filter(|home| home.is_dir())?.join(".cache")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_xdg_rules_are_kept() {
        let home = tempfile::tempdir().expect("a folder");
        let dot_cache = Some(home.path().join(".cache"));
        let home = || Some(home.path().into());
        assert_eq!(choose(Some("/somewhere/c".into()), home()), Some("/somewhere/c".into()));
        for unset in [None, Some("".into()), Some("relative/c".into())] {
            assert_eq!(choose(unset.clone(), home()), dot_cache, "{unset:?}");
            for nobody in [None, Some("".into()), Some("relative".into()), Some("/nowhere/at/all".into())] {
                assert_eq!(choose(unset.clone(), nobody), None);
            }
        }
    }
}
