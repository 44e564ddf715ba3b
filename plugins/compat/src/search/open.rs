//! dlopen, and why it failed.

use std::ffi::{CStr, OsString, c_char, c_uint};
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::names::{Entry, attempts};
use super::{Kind, Request, probe};
use crate::library::Library;

/// The reason why a library is not used.
#[derive(Debug, Clone)]
pub struct Refusal {
    /// There is no such file.
    pub missing: bool,
    /// The fault, and what the user can do.
    pub text: String,
}

impl Refusal {
    pub fn other(text: String) -> Self {
        Self { missing: false, text }
    }
}

/// Opens what an entry names.
pub fn open(kind: Kind, entry: &Entry, request: &Request<'_>) -> Result<Arc<Library>, Refusal> {
    let name = match entry {
        Entry::Program => return Ok(Library::program()),
        Entry::Name(name) => name,
    };
    let mut reasons: Vec<String> = Vec::new();
    let attempts = attempts(kind, name, request.beside);
    for path in &attempts {
        if let Some(how) = &request.probe {
            match probe::probe(path, kind, how) {
                Err(probe::Failed::Crashed(text)) => return Err(Refusal::other(text)),
                // What cannot be opened there cannot be opened here, and nothing of it ran.
                Ok(()) | Err(probe::Failed::NotOpened(_)) => {}
            }
        }
        match Library::open(path) {
            Ok(library) => return Ok(library),
            Err(error) => reasons.extend(reason(path, &error)),
        }
    }
    if reasons.is_empty() {
        reasons = foreign_in(&loader_folders(), &attempts);
    }
    if !reasons.is_empty() {
        return Err(Refusal::other(reasons.join("; ")));
    }
    let tried: Vec<String> = attempts.iter().map(|path| path.display().to_string()).collect();
    let tried = tried.join(", ");
    let text = format!(
        "not found (tried {tried}): check the name, or give a path, or add the folder to LD_LIBRARY_PATH"
    );
    Err(Refusal { missing: true, text })
}

/// The fault of a file; None if there is no file.
fn reason(path: &Path, error: &str) -> Option<String> {
    let file = path.display();
    if path.components().count() > 1 {
        // The loader says "no such file" of libraries for other machines too.
        match File::open(path).map_err(|error| error.to_string()).and_then(foreign) {
            Ok(None) => {}
            Ok(Some(text)) => return Some(format!("{file} {text}")),
            Err(_) if !path.exists() => return None,
            Err(error) => return Some(format!("{file} cannot be read: {error}")),
        }
    }
    let lost = ": cannot open shared object file: No such file or directory";
    match error.rfind(lost) {
        None => Some(format!("{file} cannot be loaded: {error}")),
        Some(at) => {
            let missing = error[..at].rsplit(": ").next().unwrap_or_default();
            (Path::new(missing) != path).then(|| {
                format!(
                    "{file} needs {missing}, which is nowhere: install it or add its folder to LD_LIBRARY_PATH \
                     (ldd {file} shows all that is missing)"
                )
            })
        }
    }
}

/// The dynamic loader passes over files for other machines in its folders as if they were not there: finds
/// those.
fn foreign_in(folders: &[PathBuf], attempts: &[PathBuf]) -> Vec<String> {
    let names = attempts.iter().filter(|path| path.components().count() == 1);
    let paths = names.flat_map(|name| folders.iter().map(move |folder| folder.join(name)));
    paths
        .filter_map(|path| {
            let why = foreign(File::open(&path).ok()?).ok()??;
            Some(format!("{} {why}", path.display()))
        })
        .collect()
}

/// The folders in which the dynamic loader looks for what the program names: `LD_LIBRARY_PATH` and the like.
fn loader_folders() -> Vec<PathBuf> {
    /// Size in bytes and number of entries, which follow: a string and flags each.
    #[repr(C)]
    struct Head(usize, c_uint);
    #[repr(C)]
    struct Entry(*const c_char, c_uint);

    let program = libloading::os::unix::Library::this().into_raw();
    let mut head = Head(0, 0);
    // SAFETY: the request fills in a head.
    if unsafe { libc::dlinfo(program, libc::RTLD_DI_SERINFOSIZE, (&raw mut head).cast()) } != 0 {
        return Vec::new();
    }
    let mut buffer = vec![0_u64; head.0.div_ceil(8) + 2];
    let whole = buffer.as_mut_ptr();
    // SAFETY: the buffer has room for the head and for as many bytes as it says, and is aligned for both.
    let filled = unsafe {
        whole.cast::<Head>().write(Head(head.0, head.1));
        libc::dlinfo(program, libc::RTLD_DI_SERINFO, whole.cast())
    };
    if filled != 0 {
        return Vec::new();
    }
    // SAFETY: the loader wrote that many entries behind the head; their strings lie in the buffer.
    let entries = unsafe {
        let first = whole.cast::<u8>().add(size_of::<Head>()).cast::<Entry>();
        std::slice::from_raw_parts(first, head.1 as usize)
    };
    // SAFETY: terminated strings, as above.
    let folder = |entry: &Entry| unsafe { CStr::from_ptr(entry.0) }.to_bytes().to_owned();
    entries.iter().map(|entry| PathBuf::from(OsString::from_vec(folder(entry)))).collect()
}

/// The reason why this process cannot load a file; None if its header fits.
fn foreign(mut file: File) -> Result<Option<String>, String> {
    let mut header = [0_u8; 20];
    if file.read_exact(&mut header).is_err() || header[..4] != *b"\x7fELF" {
        return Ok(Some("is no shared library".to_owned()));
    }
    let mut ours = [0_u8; 20];
    let mut this = File::open("/proc/self/exe").map_err(|error| error.to_string())?;
    this.read_exact(&mut ours).map_err(|error| error.to_string())?;
    let (theirs, ours) = (machine(&header), machine(&ours));
    Ok((theirs != ours)
        .then(|| format!("is built for {theirs}, this process is {ours}: get the build for {ours}")))
}

/// Name of an ELF header's machine, with its word size where that is not the usual one.
fn machine(header: &[u8; 20]) -> String {
    let little = header[5] == 1;
    let number = [header[18], header[19]];
    let number = if little { u16::from_le_bytes(number) } else { u16::from_be_bytes(number) };
    let (name, usual) = match number {
        3 => ("x86", 1),
        21 => ("ppc64", 2),
        22 => ("s390x", 2),
        40 => ("arm", 1),
        62 => ("x86-64", 2),
        183 => ("aarch64", 2),
        243 => ("riscv", 2),
        258 => ("loongarch", 2),
        _ => ("", 0),
    };
    match (name, header[4] == usual) {
        ("", _) => format!("ELF machine {number}"),
        (name, true) => name.to_owned(),
        (name, false) => format!("{name} with {} bits", if header[4] == 1 { 32 } else { 64 }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn header(class: u8, machine: u16) -> [u8; 20] {
        let mut header = [0; 20];
        header[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, 1, 1]);
        header[18..].copy_from_slice(&machine.to_le_bytes());
        header
    }

    #[test]
    fn machines_have_names() {
        assert_eq!(machine(&header(2, 62)), "x86-64");
        assert_eq!(machine(&header(1, 62)), "x86-64 with 32 bits");
        assert_eq!(machine(&header(2, 183)), "aarch64");
        assert_eq!(machine(&header(2, 999)), "ELF machine 999");
        let mut big = header(2, 0);
        big[5] = 2;
        big[18..].copy_from_slice(&[0, 22]);
        assert_eq!(machine(&big), "s390x");
    }

    #[test]
    fn the_loader_tells_its_folders() {
        let folders = loader_folders();
        let libc = |folder: &PathBuf| folder.join("libc.so.6").exists();
        assert!(folders.iter().any(libc), "{folders:?}");
    }

    #[test]
    fn foreign_files_are_told_from_missing_ones() {
        let folder = std::env::temp_dir().join(format!("hawser-open-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = folder.join(name);
            File::create(&path).unwrap().write_all(bytes).unwrap();
            path
        };
        let lost = |path: &Path| {
            format!("{}: cannot open shared object file: No such file or directory", path.display())
        };
        let other = write("other.so", &header(2, 999));
        let text = reason(&other, &lost(&other)).unwrap();
        assert!(text.contains("is built for ELF machine 999, this process is "), "{text}");
        let short = write("short.so", b"text");
        assert!(reason(&short, "file too short").unwrap().ends_with("is no shared library"));
        let missing = folder.join("missing.so");
        assert_eq!(reason(&missing, &lost(&missing)), None);
        assert_eq!(reason(Path::new("libx.so"), &lost(Path::new("libx.so"))), None);
        let text = reason(Path::new("libx.so"), &format!("dlopen failed: {}", lost(Path::new("liby.so.1"))))
            .unwrap();
        assert!(text.starts_with("libx.so needs liby.so.1, which is nowhere"), "{text}");
        let text = reason(Path::new("libx.so"), "undefined symbol: f").unwrap();
        assert_eq!(text, "libx.so cannot be loaded: undefined symbol: f");
        let attempts = ["other.so", "missing.so", "/usr/other.so"].map(PathBuf::from);
        let found = foreign_in(&[PathBuf::from("/nothing"), folder.clone()], &attempts);
        assert_eq!(found, [reason(&other, &lost(&other)).unwrap()]);
        std::fs::remove_dir_all(&folder).unwrap();
    }
}
