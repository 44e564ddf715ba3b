//! The smallest useful net plugin: ranks that share a file system exchange files.
//!
//! A connection is a folder where temporary files go (`TMPDIR`; on a shared file system it joins hosts).
//! Message `n` is the file `n`, named when it is complete. The receiver makes the folder and removes it, the
//! sender leaves a file when it goes. A rank that is killed leaves nothing, which is the price of being
//! small.

use std::fs::{self, DirBuilder, File};
use std::io::{ErrorKind::NotFound, Read};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::{collections::BTreeMap, env, process, slice, str, time::SystemTime};

use hawser_plugin::net::*;
use hawser_plugin::{Error, ErrorKind, Result};

hawser_plugin::export_plugin! { net: Files }

struct Files;

impl Net for Files {
    fn name(&self) -> &str {
        "{{crate_name}}"
    }
    fn open(&self, _config: &NetConfig) -> Result<Box<dyn NetContext>> {
        Ok(Box::new(Files))
    }
}

impl NetContext for Files {
    fn devices(&self) -> Result<u32> {
        Ok(1)
    }
    fn properties(&self, device: u32) -> Result<NetProperties> {
        let wrong = || Error::new(ErrorKind::InvalidArgument, format!("there is no device {device}, only 0"));
        (device == 0).then(|| NetProperties::new("{{crate_name}}", 0)).ok_or_else(wrong)
    }
    fn listen(&self, device: u32) -> Result<(Handle, Box<dyn Listener>)> {
        self.properties(device)?;
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let now = SystemTime::UNIX_EPOCH.elapsed().map_or(0, |time| time.as_nanos());
        let name =
            format!("hawser-{{crate_name}}-{now:x}-{}-{}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = env::temp_dir().join(&name);
        let failed = |error| Error::system(format!("making {}", folder.display()), error);
        DirBuilder::new().mode(0o700).create(&folder).map_err(failed)?;
        let mut handle = [0; HANDLE_BYTES];
        handle[..name.len()].copy_from_slice(name.as_bytes());
        Ok((handle, end(folder, remove)))
    }
    fn connect(&self, device: u32, handle: &Handle) -> Result<Box<dyn Connector>> {
        self.properties(device)?;
        let name = str::from_utf8(handle).unwrap_or_default().trim_end_matches('\0');
        if !name.starts_with("hawser-{{crate_name}}-") || name.contains(['/', '\0']) {
            return Err(Error::new(ErrorKind::InvalidArgument, "the handle is not one of the net '{{crate_name}}'"));
        }
        Ok(end(env::temp_dir().join(name), |_| ()))
    }
}

/// A listener, a connector or one end of a connection.
struct End {
    folder: PathBuf,
    next: u64,
    receives: BTreeMap<u64, Segment>,
    leave: fn(&Path),
}

fn end(folder: PathBuf, leave: fn(&Path)) -> Box<End> {
    Box::new(End { folder, next: 0, receives: BTreeMap::new(), leave })
}

fn remove(folder: &Path) {
    let _ = fs::remove_dir_all(folder);
}

impl Drop for End {
    fn drop(&mut self) {
        (self.leave)(&self.folder);
    }
}

impl Listener for End {
    fn accept(&mut self) -> Result<Option<Box<dyn Receiver>>> {
        if !self.folder.join("sender").exists() {
            return Ok(None);
        }
        self.leave = |_| (); // the folder is the receiver's now
        Ok(Some(end(self.folder.clone(), remove)))
    }
}

impl Connector for End {
    fn poll(&mut self) -> Result<Option<Box<dyn Sender>>> {
        let failed = |error| Error::remote(format!("the listener is gone or taken: {error}"));
        File::create_new(self.folder.join("sender")).map_err(failed)?;
        let say_goodbye = |folder: &Path| drop(File::create_new(folder.join("gone")));
        Ok(Some(end(self.folder.clone(), say_goodbye)))
    }
}

impl Sender for End {
    unsafe fn register(&mut self, region: &Region) -> Result<Registration> {
        let host = region.kind == MemoryKinds::HOST;
        host.then_some(Registration(0)).ok_or_else(|| Error::unsupported("memory of a GPU"))
    }
    fn deregister(&mut self, _registration: Registration) -> Result<()> {
        Ok(())
    }
    unsafe fn isend(&mut self, segment: &Segment) -> Result<Option<Request>> {
        let file = |number: u64| self.folder.join(number.to_string());
        if file(self.next.wrapping_sub(MAX_REQUESTS as u64)).exists() {
            return Ok(None); // the receiver is far behind
        }
        // SAFETY: the host keeps the segment valid and unchanged until the request is over.
        let bytes = unsafe { slice::from_raw_parts(segment.addr as *const u8, segment.bytes) };
        let part = self.folder.join("part");
        match fs::write(&part, bytes).and_then(|()| fs::rename(&part, file(self.next))) {
            Err(_) if !self.folder.exists() => return Err(Error::remote("the receiver is gone")),
            written => {
                written.map_err(|error| Error::system(format!("writing {}", part.display()), error))?
            }
        }
        self.next += 1;
        Ok(Some(Request(segment.bytes as u64)))
    }
    fn test(&mut self, request: Request) -> Result<Option<usize>> {
        Ok(Some(request.0 as usize)) // it is written, so it is sent
    }
}

impl Receiver for End {
    unsafe fn register(&mut self, region: &Region) -> Result<Registration> {
        // SAFETY: nothing is done with the memory.
        unsafe { Sender::register(self, region) }
    }
    fn deregister(&mut self, _registration: Registration) -> Result<()> {
        Ok(())
    }
    unsafe fn irecv(&mut self, segments: &[Segment], _optional: bool) -> Result<Option<Request>> {
        self.next += 1;
        self.receives.insert(self.next - 1, segments[0]);
        Ok(Some(Request(self.next - 1)))
    }
    fn test(&mut self, Request(number): Request, sizes: &mut [usize]) -> Result<bool> {
        let place = self.receives.get(&number).ok_or_else(|| Error::internal("the request is over"))?;
        let (path, gone) = (self.folder.join(number.to_string()), self.folder.join("gone").exists());
        let failed = |error| Error::system(format!("reading {}", path.display()), error);
        let mut file = match File::open(&path) {
            Err(error) if error.kind() == NotFound && gone => {
                return Err(Error::remote("the sender is gone"));
            }
            Err(error) if error.kind() == NotFound => return Ok(false),
            file => file.map_err(failed)?,
        };
        let bytes = file.metadata().map_err(failed)?.len() as usize;
        if bytes > place.bytes {
            let text = format!("a message of {bytes} bytes for a receive of {}", place.bytes);
            return Err(Error::new(ErrorKind::InvalidUsage, text));
        }
        // SAFETY: the host keeps the segment valid, and to us, until the request is over.
        let memory = unsafe { slice::from_raw_parts_mut(place.addr as *mut u8, bytes) };
        file.read_exact(memory).and_then(|()| fs::remove_file(&path)).map_err(failed)?;
        self.receives.remove(&number);
        sizes.fill(bytes);
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    hawser_plugin_testkit::net_suite!(std::sync::Arc::new(super::Files));
}
