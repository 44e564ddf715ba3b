//! `hawser doctor --net`: the nets of this machine, one after the other: devices, a transfer to itself,
//! counters of rails.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use hawser_base::log;
use hawser_plugin::net::{
    MemoryKinds, NetConfig, NetContext, NetProperties, Receiver, Region, Request, Segment, Sender,
};
use hawser_runtime::plugins;
use serde::Serialize;

use crate::output::{self, print, styled};
use crate::progress::Progress;

/// Bytes of a message.
const BYTES: usize = 1 << 20;
/// Messages under way.
const FLYING: usize = 8;
/// The time for which data are sent.
const TIME: Duration = Duration::from_secs(1);
/// Nothing takes longer than this.
const LIMIT: Duration = Duration::from_secs(30);

/// The findings about a net.
#[derive(Serialize)]
struct Found {
    name: String,
    interface: String,
    /// The reason why it offers nothing here.
    off: Option<String>,
    devices: Vec<String>,
    /// Megabytes per second from the net to itself, and whether that was over all devices as one.
    megabytes_per_second: Option<f64>,
    all_devices_as_one: bool,
    rails: Vec<String>,
    /// The reason why it does not work although there are devices.
    problem: Option<String>,
}

/// Prints what it finds. False: a net that has devices does not work.
pub fn run(json: bool) -> Result<bool> {
    let mut all = Vec::new();
    for candidate in plugins::nets(None)? {
        let net = &candidate.net.plugin;
        let waiting = Progress::waiting(&format!("trying {}", net.name()));
        let mut found = Found {
            name: net.name().to_owned(),
            interface: candidate.net.interface.to_string(),
            off: None,
            devices: Vec::new(),
            megabytes_per_second: None,
            all_devices_as_one: false,
            rails: Vec::new(),
            problem: None,
        };
        match net.open(&NetConfig::new(1, log::for_plugins())) {
            Err(error) => found.off = Some(error.to_string()),
            Ok(context) => {
                found.problem = examine(&*context, &mut found).err().map(|error| format!("{error:#}"));
            }
        }
        waiting.end();
        if !json {
            print(&found.text())?;
        }
        all.push(found);
    }
    if json {
        output::print_json(&all)?;
    }
    Ok(all.iter().all(|found| found.problem.is_none()))
}

fn examine(context: &dyn NetContext, found: &mut Found) -> Result<()> {
    let count = context.devices()?;
    for device in 0..count {
        found.devices.push(describe(&context.properties(device)?));
    }
    if count == 0 {
        return Ok(());
    }
    let all: Vec<u32> = (0..count).collect();
    let joined = if all.len() > 1 { context.make_virtual(&all).ok() } else { None };
    found.all_devices_as_one = joined.is_some();
    let mut ends = Ends::open(context, joined.unwrap_or(0)).context("a connection to itself")?;
    let rate = ends.send().context("a transfer to itself")?;
    found.megabytes_per_second = Some(rate / 1e6);
    let rails = hawser_net_ib::rails();
    let used = rails.iter().filter(|rail| rail.chunks > 0);
    found.rails = used.map(|rail| format!("{}: {rail}", rail.rail)).collect();
    Ok(())
}

impl Found {
    /// The lines about the net.
    fn text(&self) -> String {
        let mut text = format!("{} ({})\n", self.name, self.interface);
        if let Some(why) = &self.off {
            let _ = writeln!(text, "  off: {why}");
        } else if self.devices.is_empty() && self.problem.is_none() {
            text += "  no devices\n";
        }
        for (number, device) in self.devices.iter().enumerate() {
            let _ = writeln!(text, "  device {number}: {device}");
        }
        if let Some(rate) = self.megabytes_per_second {
            let which = if self.all_devices_as_one { "all devices as one" } else { "device 0" };
            let ok = styled(output::GOOD, "ok");
            let _ = writeln!(text, "  {ok}  {which}: {rate:.0} MB/s to itself, messages of 1 MiB");
        }
        for rail in &self.rails {
            let _ = writeln!(text, "  rail {rail}");
        }
        if let Some(problem) = &self.problem {
            let _ = writeln!(text, "  {}  {problem}", styled(output::BAD, "!!"));
        }
        text
    }
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
