//! The kernels that a release must carry. Runs only with feature `require-kernels`.

use hawser_kernels::{Arch, FATBINS, archs};

#[test]
fn every_image_has_code_for_the_default_architectures_and_ptx() {
    assert!(!FATBINS.is_empty(), "kernels/cuda holds no .cu file");
    let wanted = [75, 80, 90, 100].map(Arch::Cubin).into_iter().chain([Arch::Ptx(75), Arch::Ptx(100)]);
    for arch in wanted {
        for (name, image) in FATBINS {
            let found = archs(image);
            assert!(found.contains(&arch), "{name} has {found:?}, not {arch}");
        }
    }
}
