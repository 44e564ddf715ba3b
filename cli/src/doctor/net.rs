//! `hawser doctor --net`: the nets of this machine, one after the other: devices, a transfer to itself,
//! counters of rails.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hawser_base::log;
use hawser_plugin::net::{
    MemoryKinds, NetConfig, NetContext, NetProperties, Receiver, Region, Request, Segment, Sender,
};
use hawser_runtime::plugins;

use crate::output::{self, print, styled};

/// Bytes of a message.
const BYTES: usize = 1 << 20;
/// Messages under way.
const FLYING: usize = 8;
/// The time for which data are sent.
const TIME: Duration = Duration::from_secs(1);
/// Nothing takes longer than this.
const LIMIT: Duration = Duration::from_secs(30);

/// Prints what it finds. False: a net that has devices does not work.
pub fn run() -> Result<bool> {
    let mut fine = true;
    for candidate in plugins::nets(None)? {
        let net = &candidate.net.plugin;
        print(&format!("{} ({})\n", net.name(), candidate.net.interface))?;
        match net.open(&NetConfig::new(1, log::for_plugins())) {
            Err(error) => print(&format!("  off: {error}\n"))?,
            Ok(context) => {
                if let Err(error) = examine(&*context) {
                    print(&format!("  {}  {error:#}\n", styled(output::BAD, "!!")))?;
                    fine = false;
                }
            }
        }
    }
    Ok(fine)
}

fn examine(context: &dyn NetContext) -> Result<()> {
    let count = context.devices()?;
    if count == 0 {
        print("  no devices\n")?;
        return Ok(());
    }
    let mut all = Vec::new();
    for device in 0..count {
        let properties = context.properties(device)?;
        print(&format!("  device {device}: {}\n", describe(&properties)))?;
        all.push(device);
    }
    let joined = if all.len() > 1 { context.make_virtual(&all).ok() } else { None };
    let device = joined.unwrap_or(0);
    let mut ends = Ends::open(context, device).context("a connection to itself")?;
    let rate = ends.send().context("a transfer to itself")?;
    let which = if joined.is_some() { "all devices as one" } else { "device 0" };
    let ok = styled(output::GOOD, "ok");
    print(&format!("  {ok}  {which}: {:.0} MB/s to itself, messages of 1 MiB\n", rate / 1e6))?;
    for rail in hawser_net_ib::rails().iter().filter(|rail| rail.chunks > 0) {
        print(&format!("  rail {}: {rail}\n", rail.rail))?;
    }
    Ok(())
}

fn describe(properties: &NetProperties) -> String {
    let kinds = [(MemoryKinds::HOST, "host"), (MemoryKinds::CUDA, "GPU"), (MemoryKinds::DMABUF, "DMA-BUF")];
    let kinds = kinds.iter().filter(|kind| properties.memory.contains(kind.0));
    let kinds: Vec<&str> = kinds.map(|kind| kind.1).collect();
    let path = properties.pci_path.as_deref().unwrap_or("no PCI path");
    format!("{}, {} Mb/s, {path}, memory: {}", properties.name, properties.speed_mbps, kinds.join(", "))
}

/// Both ends of a connection of this process, with a buffer each.
struct Ends {
    sender: Box<dyn Sender>,
    receiver: Box<dyn Receiver>,
    source: (Vec<u8>, Segment),
    target: (Vec<u8>, Segment),
}

impl Ends {
    fn open(context: &dyn NetContext, device: u32) -> Result<Self> {
        let (handle, mut listener) = context.listen(device)?;
        let mut connector = context.connect(device, &handle)?;
        let (mut sender, mut receiver) = (None, None);
        let start = Instant::now();
        while sender.is_none() || receiver.is_none() {
            in_time(start)?;
            sender = if sender.is_none() { connector.poll()? } else { sender };
            receiver = if receiver.is_none() { listener.accept()? } else { receiver };
        }
        let (Some(mut sender), Some(mut receiver)) = (sender, receiver) else { bail!("no connection") };
        let region = |bytes: &[u8]| {
            let (addr, bytes) = (bytes.as_ptr() as u64, bytes.len());
            Region { addr, bytes, kind: MemoryKinds::HOST, dmabuf: None }
        };
        let (source, target) = (vec![7; BYTES], vec![0; BYTES * FLYING]);
        // SAFETY: the buffers are dropped after the connection, whose fields come first.
        let (from, to) =
            unsafe { (sender.register(&region(&source))?, receiver.register(&region(&target))?) };
        let segment = |bytes: &[u8], registration| {
            let addr = bytes.as_ptr() as u64;
            Segment { addr, bytes: BYTES, registration, tag: 0, profile: 0 }
        };
        let (out, into) = (segment(&source, from), segment(&target, to));
        Ok(Self { sender, receiver, source: (source, out), target: (target, into) })
    }

    /// Bytes per second.
    fn send(&mut self) -> Result<f64> {
        let start = Instant::now();
        let (mut sends, mut receives): (Vec<Request>, Vec<Request>) = (Vec::new(), Vec::new());
        let (mut posted, mut sent, mut came) = (0, 0, 0);
        while came < sent || sent == 0 || start.elapsed() < TIME {
            in_time(start)?;
            let more = start.elapsed() < TIME;
            while receives.len() < FLYING && (more || posted < sent) {
                let mut segment = self.target.1;
                segment.addr += (posted % FLYING * BYTES) as u64;
                // SAFETY: nobody reads the buffer before the connection is closed.
                let Some(request) = (unsafe { self.receiver.irecv(&[segment], false)? }) else { break };
                receives.push(request);
                posted += 1;
            }
            while more && sends.len() < FLYING {
                // SAFETY: nobody writes to the buffer.
                let Some(request) = (unsafe { self.sender.isend(&self.source.1)? }) else { break };
                sends.push(request);
                sent += 1;
            }
            while let Some(&request) = sends.first()
                && self.sender.test(request)?.is_some()
            {
                sends.remove(0);
            }
            while let Some(&request) = receives.first()
                && self.receiver.test(request, &mut [0])?
            {
                receives.remove(0);
                came += 1;
            }
        }
        let seconds = start.elapsed().as_secs_f64();
        while let Some(&request) = sends.first() {
            in_time(start)?;
            if self.sender.test(request)?.is_some() {
                sends.remove(0);
            }
        }
        if self.target.0[..BYTES] != self.source.0[..] {
            bail!("other data arrived than were sent");
        }
        Ok((came * BYTES) as f64 / seconds)
    }
}

fn in_time(start: Instant) -> Result<()> {
    if start.elapsed() > LIMIT {
        bail!("nothing happened for {} s", LIMIT.as_secs());
    }
    Ok(())
}
