//! Hawser's CUDA kernels as bytes, for the runtime to load.
//!
//! `build.rs` compiles every `cuda/*.cu` file to one fat binary: machine code for each default
//! architecture and PTX for newer GPUs. This crate only embeds the results, it never talks to a
//! driver, so it builds and links on any machine. Without a CUDA compiler the table is empty and
//! the host device is the only one.
//!
//! ```
//! for (name, image) in hawser_kernels::FATBINS {
//!     println!("{name}: {} bytes for {} architectures", image.len(), hawser_kernels::archs(image).len());
//! }
//! assert!(hawser_kernels::image("no kernel has this name").is_none());
//! ```

mod fatbin;

pub use fatbin::{Arch, archs};

/// One fat binary per `.cu` file of the library: its file stem, and the image as the driver takes it
/// (`cuLibraryLoadData`, `cuModuleLoadData`). Images are aligned to 64 bytes, sorted by name.
/// Empty if the crate was built without a CUDA compiler or with feature `no-kernels`.
pub static FATBINS: &[(&str, &[u8])] = table::TABLE;

/// The image called `name`, if it was built.
pub fn image(name: &str) -> Option<&'static [u8]> {
    FATBINS.iter().find(|(stem, _)| *stem == name).map(|(_, image)| *image)
}

/// Images that the library has no use for but tools have; see [`tool`].
static TOOLS: &[(&str, &[u8])] = table::TOOLS;

/// The image of a tool's kernels, a file whose name begins with `t_`, if it was built. What never calls this
/// does not contain them.
pub fn tool(name: &str) -> Option<&'static [u8]> {
    TOOLS.iter().find(|(stem, _)| *stem == name).map(|(_, image)| *image)
}

mod table {
    /// `include_bytes!` aligns to one byte, the driver reads u64 fields.
    #[allow(dead_code)] // not used by an empty table
    #[repr(C, align(64))]
    struct Aligned<T: ?Sized>(T);

    include!(concat!(env!("OUT_DIR"), "/table.rs"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn images_are_aligned_sorted_and_readable() {
        assert!(FATBINS.is_sorted_by_key(|(name, _)| *name));
        for (name, image) in FATBINS {
            assert_eq!(image.as_ptr() as usize % 64, 0, "{name} is not aligned");
            assert!(!archs(image).is_empty(), "{name} holds no code");
        }
    }

    #[test]
    fn image_finds_by_name_only() {
        assert!(image("no such kernel").is_none());
        for (name, bytes) in FATBINS {
            assert_eq!(image(name).map(<[u8]>::as_ptr), Some(bytes.as_ptr()));
        }
    }
}
