//! The check of those who ask and answer about rules: programs of one user, and nobody else. Folder, socket
//! and the process at the other end are each looked at, since a path can be given to somebody else meanwhile.

use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use hawser_base::error::{Error, Result};

/// Checks that a folder is one that nobody else can look into.
///
/// # Errors
/// `System`: it cannot be looked at. `InvalidUsage`: it is a link, somebody else's, or open to others.
pub fn check_folder(folder: &Path) -> Result<()> {
    let name = || format!("the folder {}", folder.display());
    let meta = std::fs::symlink_metadata(folder).map_err(|error| Error::system(name(), error))?;
    if !meta.is_dir() || meta.uid() != own() || meta.mode() & 0o077 != 0 {
        let text = format!("{} is not a folder of this user (number {}) alone (mode 700)", name(), own());
        let remedy = "set HAWSER_RUNTIME_DIR to one; rules of another user's job are changed as that user";
        return Err(Error::invalid_usage(text).remedy(remedy));
    }
    Ok(())
}

/// Checks that a path is a socket of this user.
///
/// # Errors
/// `System`: it cannot be looked at. `InvalidUsage`: it is something else, or somebody else's.
pub fn check_socket(path: &Path) -> Result<()> {
    let name = || format!("the socket {}", path.display());
    let meta = std::fs::symlink_metadata(path).map_err(|error| Error::system(name(), error))?;
    if !meta.file_type().is_socket() || meta.uid() != own() {
        return Err(Error::invalid_usage(format!("{} is none of this user (number {})", name(), own())));
    }
    Ok(())
}

/// Checks that the process at the other end is this user's (`SO_PEERCRED`, unix(7)).
///
/// # Errors
/// `System`: the kernel does not say. `InvalidUsage`: it is somebody else's.
pub fn check_peer(stream: &impl AsFd) -> Result<()> {
    let peer = rustix::net::sockopt::socket_peercred(stream)
        .map_err(|errno| Error::system("asking who is at the other end of a socket", errno))?;
    if peer.uid.as_raw() != own() {
        let text = format!(
            "a process of user {} is at the other end, not one of this user (number {})",
            peer.uid.as_raw(),
            own()
        );
        return Err(Error::invalid_usage(text));
    }
    Ok(())
}

/// The text with a question mark for each character that could move a cursor, change colours or turn the
/// direction of writing; ends of lines stay.
pub fn printable(text: &str) -> String {
    let is_meant = |c: char| {
        let turns = matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}');
        c == '\n' || !c.is_control() && !turns && c != '\u{feff}'
    };
    text.chars().map(|c| if is_meant(c) { c } else { '?' }).collect()
}

/// The number of this user.
pub fn own() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    /// A number that no test runs as.
    const STRANGER: u32 = 54_321;

    #[test]
    fn what_moves_the_cursor_is_not_printed() {
        assert_eq!(printable("naïve 名\nx"), "naïve 名\nx");
        assert_eq!(printable("a\u{1b}[2J\r\u{9b}b\u{202e}c\u{7f}"), "a?[2J??b?c?");
    }

    #[test]
    fn folders_and_sockets_of_others_are_refused() {
        let folder = std::env::temp_dir().join(format!("hawser-same-user-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let set = |mode| std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(mode)).unwrap();
        set(0o755);
        assert!(check_folder(&folder).unwrap_err().text.contains("mode 700"));
        set(0o700);
        check_folder(&folder).unwrap();
        let socket = folder.join("socket");
        let _listener = UnixListener::bind(&socket).unwrap();
        check_socket(&socket).unwrap();
        std::fs::write(folder.join("file"), "").unwrap();
        assert!(check_socket(&folder.join("file")).is_err());
        let link = folder.join("link");
        std::os::unix::fs::symlink(&socket, &link).unwrap();
        assert!(check_socket(&link).is_err(), "a link may lead anywhere");
        // Only root can give things away.
        if std::os::unix::fs::chown(&socket, Some(STRANGER), None).is_ok() {
            assert!(check_socket(&socket).unwrap_err().text.contains("none of this user"));
            std::os::unix::fs::chown(&folder, Some(STRANGER), None).unwrap();
            assert!(check_folder(&folder).unwrap_err().text.contains("of this user"));
        }
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn the_other_end_is_known() {
        let (one, _other) = UnixStream::pair().unwrap();
        check_peer(&one).unwrap();
    }
}
