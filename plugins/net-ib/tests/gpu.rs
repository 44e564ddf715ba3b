//! "GPU memory" over the double of verbs: what devices write there is only seen after a read by the same
//! device.

mod common;

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;

use common::until;
use hawser_net_ib::IbNet;
use hawser_net_ib::soft::Fabric;
use hawser_plugin::net::{MemoryKinds, NetConfig, NetContext, Receiver, Region, Segment, Sender};
use hawser_plugin::{ErrorKind, Log, Net};

const BYTES: usize = 1 << 20;

fn open(fabric: &Fabric, gpu: bool) -> Box<dyn NetContext> {
    let mut settings = common::settings();
    settings.gpu = gpu;
    IbNet::on_soft(settings, fabric.host(0..2)).open(&NetConfig::new(1, Log::silent())).unwrap()
}

fn ends(context: &dyn NetContext) -> (Box<dyn Sender>, Box<dyn Receiver>) {
    let device = context.make_virtual(&[0, 1]).unwrap();
    let (handle, mut listener) = context.listen(device).unwrap();
    let mut connector = context.connect(device, &handle).unwrap();
    let (mut sender, mut receiver) = (None, None);
    until("connecting", || {
        sender = sender.take().or_else(|| connector.poll().unwrap());
        receiver = receiver.take().or_else(|| listener.accept().unwrap());
        (sender.is_some() && receiver.is_some()).then_some(())
    });
    (sender.unwrap(), receiver.unwrap())
}

/// The fault of the first device's port between a message and its flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    /// It dies, and its rail has been stopped.
    Known,
    /// It dies, and nobody has noticed.
    New,
}

/// Sends from host memory into `target`, registered as a kind; flushes. What was seen before the flush.
fn transfer(fabric: &Fabric, target: &mut [u8], region: Region, fault: Fault) -> Vec<u8> {
    let context = open(fabric, true);
    let (mut sender, mut receiver) = ends(&*context);
    let source: Vec<u8> = (0..BYTES).map(|at| (at * 7 + at / 256) as u8).collect();
    let host = Region { addr: source.as_ptr() as u64, bytes: BYTES, kind: MemoryKinds::HOST, dmabuf: None };
    // SAFETY: both live until the connection is closed.
    let (from, to) = unsafe { (sender.register(&host).unwrap(), receiver.register(&region).unwrap()) };
    let segment = |addr, registration| Segment { addr, bytes: BYTES, registration, tag: 0, profile: 0 };
    let (out, into) = (segment(host.addr, from), segment(region.addr, to));
    // SAFETY: nobody touches the buffers until the requests are over.
    let receive = until("irecv", || unsafe { receiver.irecv(&[into], false) }.unwrap());
    // SAFETY: as above.
    let send = until("isend", || unsafe { sender.isend(&out) }.unwrap());
    let mut size = [0];
    until("the message", || receiver.test(receive, &mut size).unwrap().then_some(()));
    until("the send", || sender.test(send).unwrap());
    let before = target.to_vec();
    if fault == Fault::New {
        fabric.port_goes_untold(0);
    }
    if fault == Fault::Known {
        fabric.port(0, false);
        until("the rail is stopped", || {
            let _ = receiver.test(hawser_plugin::net::Request(999), &mut []);
            hawser_net_ib::rails().iter().any(|rail| rail.stopped > 0).then_some(())
        });
    }
    // SAFETY: as above.
    if let Some(flush) = unsafe { receiver.flush(&[into]) }.unwrap() {
        until("the flush", || receiver.test(flush, &mut []).unwrap().then_some(()));
        assert_eq!(receiver.test(flush, &mut []).unwrap_err().kind, ErrorKind::Internal);
    }
    assert!(target == source, "not everything is seen after the flush");
    receiver.deregister(to).unwrap();
    sender.deregister(from).unwrap();
    before
}

#[test]
fn a_flush_reads_through_every_device() {
    let fabric = Fabric::new(2).with_gpus();
    for fault in [Fault::None, Fault::Known, Fault::New] {
        fabric.port(0, true);
        let mut target = vec![0; BYTES];
        let (addr, kind) = (target.as_mut_ptr() as u64, MemoryKinds::CUDA);
        let before = transfer(&fabric, &mut target, Region { addr, bytes: BYTES, kind, dmabuf: None }, fault);
        assert!(before.iter().filter(|&&byte| byte == 0).count() > BYTES / 2, "it was seen without a flush");
    }
}

#[test]
fn dmabuf_is_registered_by_descriptor_and_offset() {
    let fabric = Fabric::new(2).with_gpus();
    let file = tempfile();
    file.write_all_at(&[0], 4096 + BYTES as u64 - 1).unwrap();
    let mut target = vec![0; BYTES];
    let addr = target.as_mut_ptr() as u64;
    let region =
        |fd, offset| Region { addr, bytes: BYTES, kind: MemoryKinds::DMABUF, dmabuf: Some((fd, offset)) };
    transfer(&fabric, &mut target, region(file.as_raw_fd(), 4096), Fault::None);
    let context = open(&fabric, true);
    let (_, mut receiver) = ends(&*context);
    for bad in [region(file.as_raw_fd(), 8192), region(-1, 0), Region { dmabuf: None, ..region(0, 0) }] {
        // SAFETY: the buffer lives long enough; nothing is transferred.
        assert_eq!(unsafe { receiver.register(&bad) }.unwrap_err().kind, ErrorKind::System, "{bad:?}");
    }
}

#[test]
fn gpu_memory_is_offered_only_if_it_is_asked_for_and_there() {
    let kinds = |fabric: &Fabric, gpu| open(fabric, gpu).properties(0).unwrap().memory;
    let all = MemoryKinds(MemoryKinds::HOST.0 | MemoryKinds::CUDA.0 | MemoryKinds::DMABUF.0);
    assert_eq!(kinds(&Fabric::new(2).with_gpus(), true), all);
    assert_eq!(kinds(&Fabric::new(2).with_gpus(), false), MemoryKinds::HOST);
    assert_eq!(kinds(&Fabric::new(2), true), MemoryKinds::HOST);
}

fn tempfile() -> File {
    let path = std::env::temp_dir().join(format!("hawser-ib-gpu-{}", std::process::id()));
    let file = File::options().create(true).truncate(true).read(true).write(true).open(&path).unwrap();
    let _ = std::fs::remove_file(path);
    file
}
