//! Work that computes beside a transfer: GEMMs on a stream of the GPU, or on a thread of the CPU; and how
//! both are timed.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use half::bf16;
use hawser_device::{Device, Memory, OwnedStream};
use hawser_kernels::tool;
use hawser_runtime::Stream;

use super::blas::Blas;
use super::driver::{Driver, Kernel};

/// The times at which operations ended, in seconds; the first entry is the time at which they began.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Marks {
    /// The time of each GEMM.
    pub gemm: Vec<f64>,
    /// The time of each transfer.
    pub transfer: Vec<f64>,
}

/// The transfers of a run.
pub struct Transfers<'a> {
    /// The number of transfers.
    pub count: usize,
    /// Puts one on its stream, or runs it.
    pub start: &'a dyn Fn() -> Result<()>,
    /// Their stream.
    pub stream: Stream,
    /// Waits until all are over.
    pub finish: &'a dyn Fn() -> Result<()>,
}

/// The engine that multiplies matrices on the device.
pub enum Engine {
    /// A GPU.
    Gpu(Box<Gpu>),
    /// The CPU.
    Cpu(Cpu),
}

impl Engine {
    /// For matrices of `side` rows. The device's context is current.
    ///
    /// # Errors
    /// There is neither cuBLAS nor a kernel of our own, or its results are wrong.
    pub fn new(
        device: &Arc<dyn Device>,
        is_host: bool,
        side: u32,
        own: bool,
        limit: Duration,
    ) -> Result<Self> {
        match is_host {
            true => Ok(Self::Cpu(Cpu::new(side))),
            false => Ok(Self::Gpu(Box::new(Gpu::new(device, side, own, limit)?))),
        }
    }

    /// Returns the name of the engine, for people.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Gpu(gpu) => gpu.way.name(),
            Self::Cpu(_) => "the CPU",
        }
    }

    /// Runs so many GEMMs beside transfers, each after the one before, and waits for their end.
    ///
    /// # Errors
    /// What the library, the device or the GEMM reports; or it took too long.
    pub fn run(&self, gemms: usize, transfers: &Transfers<'_>) -> Result<Marks> {
        match self {
            Self::Gpu(gpu) => gpu.run(gemms, transfers),
            Self::Cpu(cpu) => cpu.run(gemms, transfers),
        }
    }
}

/// See [`Engine::Gpu`].
pub struct Gpu {
    driver: &'static Driver,
    device: Arc<dyn Device>,
    stream: OwnedStream,
    side: u32,
    limit: Duration,
    /// Before the matrices: it goes first.
    way: Way,
    /// A, B and C, columns one after the other.
    matrices: [Memory; 3],
}

/// The code that multiplies.
enum Way {
    Blas(Blas),
    Own(Kernel),
}

impl Way {
    fn name(&self) -> &'static str {
        match self {
            Self::Blas(_) => "cuBLAS",
            Self::Own(_) => "hawser's kernel",
        }
    }
}

/// Rows and columns of C that a block of our kernel makes, its threads, and the multiple that a side must be.
const TILE: u32 = 128;
const THREADS: u32 = 256;

impl Gpu {
    fn new(device: &Arc<dyn Device>, side: u32, own: bool, limit: Duration) -> Result<Self> {
        let driver = Driver::open()?;
        let stream = device.stream()?;
        let way = match own {
            true => Self::own_way(driver, side)?,
            false => match Blas::open(stream.stream) {
                Ok(blas) => Way::Blas(blas),
                Err(error) => Self::own_way(driver, side).with_context(|| {
                    format!("cuBLAS cannot be used ({error:#}), and neither can our own kernel")
                })?,
            },
        };
        let bytes = u64::from(side) * u64::from(side) * 2;
        let alloc = || device.alloc_as_user(bytes).context("no memory for the GEMM: lower --gemm");
        let matrices = [alloc()?, alloc()?, alloc()?];
        let gpu = Self { driver, device: device.clone(), stream, side, limit, way, matrices };
        gpu.fill_and_check()?;
        Ok(gpu)
    }

    fn own_way(driver: &'static Driver, side: u32) -> Result<Way> {
        let image = tool("t_gemm").ok_or_else(|| {
            anyhow!("this program was built without kernels: build it where nvcc is, or install cuBLAS")
        })?;
        if !side.is_multiple_of(TILE) {
            bail!(
                "our own kernel multiplies matrices whose rows are a multiple of {TILE}: change --gemm {side}"
            );
        }
        Ok(Way::Own(driver.kernel(image, c"hawser_gemm_bf16")?))
    }

    /// Random numbers, as power and speed depend on them; and whether some elements come out right.
    fn fill_and_check(&self) -> Result<()> {
        let n = self.side as usize;
        let matrix = |seed: u64| -> Vec<bf16> {
            let mut state = seed;
            let mut next = || {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                bf16::from_f32((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0)
            };
            (0..n * n).map(|_| next()).collect()
        };
        let (a, b) = (matrix(1), matrix(2));
        for (memory, values) in self.matrices.iter().zip([&a, &b]) {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            self.device.upload(memory.addr, &bytes)?;
        }
        self.multiply()?;
        self.wait()?;
        for at in 0..64 {
            let (row, column) = (at * 7919 % n, at * 104_729 % n);
            let expected: f64 = (0..n)
                .map(|k| f64::from(a[row + k * n].to_f32()) * f64::from(b[k + column * n].to_f32()))
                .sum();
            let mut bytes = [0; 2];
            self.device.download(self.matrices[2].addr + 2 * (row + column * n) as u64, &mut bytes)?;
            let found = f64::from(bf16::from_le_bytes(bytes).to_f32());
            if (found - expected).abs() > 0.02 * expected.abs() + 0.05 {
                let name = self.way.name();
                bail!(
                    "the GEMM of {name} is wrong: element ({row}, {column}) is {found} instead of \
                     {expected:.3}"
                );
            }
        }
        Ok(())
    }

    fn multiply(&self) -> Result<()> {
        let [mut a, mut b, mut c] = [0, 1, 2].map(|i| self.matrices[i].addr);
        match &self.way {
            // SAFETY: matrices of that side, which live as long as `self`, as the stream does.
            Way::Blas(blas) => unsafe { blas.multiply(self.side, [a, b, c]) },
            Way::Own(kernel) => {
                // Rows one after the other: with the factors exchanged it is the same product.
                let mut side = self.side;
                let blocks = self.side / TILE;
                let mut parameters: [*mut c_void; 4] =
                    [(&raw mut b).cast(), (&raw mut a).cast(), (&raw mut c).cast(), (&raw mut side).cast()];
                // SAFETY: what the kernel takes: three addresses and the side; the matrices live as above.
                unsafe { kernel.launch((blocks, blocks), THREADS, self.stream.stream, &mut parameters) }
            }
        }
    }

    fn run(&self, gemms: usize, transfers: &Transfers<'_>) -> Result<Marks> {
        let (own, theirs) = (self.stream.stream, transfers.stream);
        // The first event is the beginning of time, the transfers' come last.
        let events = self.driver.events(gemms + transfers.count + 2)?;
        let first = gemms + 1;
        events.record(0, own)?;
        events.record(first, theirs)?;
        let (mut done, mut moved) = (0, 0);
        while done < gemms || moved < transfers.count {
            // Whoever is behind is next, so that neither runs dry.
            if moved == transfers.count || (done < gemms && done * transfers.count <= moved * gemms) {
                self.multiply()?;
                done += 1;
                events.record(done, own)?;
            } else {
                (transfers.start)()?;
                moved += 1;
                events.record(first + moved, theirs)?;
            }
        }
        self.wait()?;
        (transfers.finish)()?;
        let times = |range: std::ops::RangeInclusive<usize>| {
            range.map(|event| events.seconds(0, event)).collect::<Result<Vec<f64>>>()
        };
        Ok(Marks { gemm: times(0..=gemms)?, transfer: times(first..=first + transfers.count)? })
    }

    fn wait(&self) -> Result<()> {
        let begun = Instant::now();
        while !self.device.is_idle(self.stream.stream)? {
            if begun.elapsed() > self.limit {
                bail!("GEMMs did not end within {:?} (-T sets this deadline)", self.limit);
            }
            std::thread::yield_now();
        }
        Ok(())
    }
}

/// See [`Engine::Cpu`].
pub struct Cpu {
    side: usize,
    a: Vec<f32>,
    b: Vec<f32>,
}

impl Cpu {
    fn new(side: u32) -> Self {
        let side = side as usize;
        let value = |i: usize| (i * 31 % 17) as f32 - 8.0;
        let matrix = || (0..side * side).map(value).collect();
        Self { side, a: matrix(), b: matrix() }
    }

    /// A product, row after row.
    fn multiply(&self) -> Vec<f32> {
        let n = self.side;
        let mut c = vec![0.0; n * n];
        for (row, out) in c.chunks_exact_mut(n).enumerate() {
            for (k, factor) in self.a[row * n..][..n].iter().enumerate() {
                out.iter_mut().zip(&self.b[k * n..][..n]).for_each(|(sum, b)| *sum += factor * b);
            }
        }
        c
    }

    fn run(&self, gemms: usize, transfers: &Transfers<'_>) -> Result<Marks> {
        let begun = Instant::now();
        let now = || begun.elapsed().as_secs_f64();
        let mut marks = Marks::default();
        // A CPU that is shared takes so much longer for transfers that only they know when to end.
        let moving = AtomicBool::new(transfers.count > 0 && gemms > 0);
        let compute = || -> Vec<f64> {
            let mut ends = vec![now()];
            while ends.len() <= gemms || moving.load(Ordering::Relaxed) {
                std::hint::black_box(self.multiply());
                ends.push(now());
            }
            ends
        };
        std::thread::scope(|scope| {
            let other = scope.spawn(compute);
            marks.transfer.push(now());
            let moved: Result<()> = (0..transfers.count).try_for_each(|_| {
                (transfers.start)()?;
                marks.transfer.push(now());
                Ok(())
            });
            moving.store(false, Ordering::Relaxed);
            marks.gemm = other.join().map_err(|_| anyhow!("the GEMM's thread panicked"))?;
            moved
        })?;
        (transfers.finish)()?;
        Ok(marks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cpu_multiplies_and_both_sides_are_marked() {
        let cpu = Cpu { side: 2, a: vec![1.0, 2.0, 3.0, 4.0], b: vec![5.0, 6.0, 7.0, 8.0] };
        assert_eq!(cpu.multiply(), [19.0, 22.0, 43.0, 50.0]);
        let started = std::cell::Cell::new(0);
        let start = || {
            started.set(started.get() + 1);
            Ok(())
        };
        let transfers = Transfers { count: 3, start: &start, stream: Stream(0), finish: &|| Ok(()) };
        let marks = cpu.run(4, &transfers).unwrap();
        assert_eq!((marks.transfer.len(), started.get()), (4, 3));
        assert!(marks.gemm.len() >= 5);
        assert_eq!(cpu.run(0, &transfers).unwrap().gemm.len(), 1);
        assert!(marks.gemm.is_sorted() && marks.transfer.is_sorted());
        let fails = Transfers { start: &|| bail!("no"), ..transfers };
        assert!(cpu.run(1, &fails).is_err());
    }
}
