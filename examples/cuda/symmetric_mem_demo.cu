// The life of memory that is mapped by hand, on one GPU: physical memory is made, an address range is
// reserved, the one is mapped at the other, the device is let in, and all of it is undone. This is what
// Hawser's heaps, windows and ncclMemAlloc are made of.
#include "common.h"

#include <unistd.h>

const size_t WANTED = 8 << 20;

static const char* yes_no(int value) { return value ? "yes" : "no"; }

// Tells what the device can share, and ends the demo where it cannot map memory at all.
static void ask(int device) {
    char name[128];
    DRIVER(cuDeviceGetName(name, sizeof name, device));
    step("device %d is a %s", device, name);
    if (!attribute(device, CU_DEVICE_ATTRIBUTE_VIRTUAL_ADDRESS_MANAGEMENT_SUPPORTED))
        fail("this device has no virtual memory management");
    printf("   shared by file descriptor: %s\n",
           yes_no(attribute(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)));
    printf("   shared by fabric handle:   %s\n",
           yes_no(attribute(device, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED)));
    printf("   read by NICs (RDMA):       %s\n",
           yes_no(attribute(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED)));
    printf("   exported as DMA-BUF:       %s\n",
           yes_no(attribute(device, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED)));
}

// Tries the handles that others would map the memory by.
static void hand_out(CUmemGenericAllocationHandle memory, CUdeviceptr at, size_t bytes) {
    int descriptor = -1;
    CUresult shared =
        cuMemExportToShareableHandle(&descriptor, memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    step("a file descriptor for other processes: %s", shared == CUDA_SUCCESS ? "made" : "refused");
    if (shared == CUDA_SUCCESS) close(descriptor);
    CUresult exported =
        cuMemGetHandleForAddressRange(&descriptor, at, bytes, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD, 0);
    step("a DMA-BUF for NICs: %s", exported == CUDA_SUCCESS ? "made" : "refused");
    if (exported == CUDA_SUCCESS) close(descriptor);
}

int main() {
    const int device = 0;
    RUNTIME(cudaSetDevice(device));
    RUNTIME(cudaFree(nullptr));  // makes the context
    ask(device);

    CUmemAllocationProp of = shareable_on(device);
    of.allocFlags.gpuDirectRDMACapable =
        attribute(device, CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) != 0;
    size_t least, best;
    DRIVER(cuMemGetAllocationGranularity(&least, &of, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    DRIVER(cuMemGetAllocationGranularity(&best, &of, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED));
    const size_t bytes = round_up(WANTED, best);
    step("granularity: at least %zu KiB, better %zu KiB; %zu KiB it will be", least >> 10, best >> 10,
         bytes >> 10);

    size_t free_before, total;
    RUNTIME(cudaMemGetInfo(&free_before, &total));
    CUmemGenericAllocationHandle memory;
    DRIVER(cuMemCreate(&memory, bytes, &of, 0));
    step("cuMemCreate: physical memory, which has no address yet");

    CUdeviceptr at;
    DRIVER(cuMemAddressReserve(&at, bytes, best, 0, 0));
    step("cuMemAddressReserve: addresses from %p on, which have no memory yet", (void*)at);

    DRIVER(cuMemMap(at, bytes, 0, memory, 0));
    step("cuMemMap: the memory is at these addresses");

    allow(at, bytes, device);
    step("cuMemSetAccess: device %d may read and write", device);

    uint32_t* words = (uint32_t*)at;
    const size_t count = bytes / sizeof(uint32_t);
    fill<<<64, 256>>>(words, count, 7);
    RUNTIME(cudaDeviceSynchronize());
    size_t wrong = wrong_words(words, count, 7);
    if (wrong != 0) fail("%zu of %zu words are wrong", wrong, count);
    step("a kernel wrote %zu words, all are right", count);
    hand_out(memory, at, bytes);

    // The same memory at a second address: how one process sees one heap twice.
    CUdeviceptr again;
    DRIVER(cuMemAddressReserve(&again, bytes, best, 0, 0));
    DRIVER(cuMemMap(again, bytes, 0, memory, 0));
    allow(again, bytes, device);
    wrong = wrong_words((const uint32_t*)again, count, 7);
    if (wrong != 0) fail("%zu words differ at the second address", wrong);
    step("mapped once more at %p: the same words", (void*)again);

    DRIVER(cuMemUnmap(again, bytes));
    DRIVER(cuMemAddressFree(again, bytes));
    DRIVER(cuMemUnmap(at, bytes));
    step("cuMemUnmap: the addresses have no memory any more");
    DRIVER(cuMemAddressFree(at, bytes));
    step("cuMemAddressFree: the addresses are free");
    DRIVER(cuMemRelease(memory));
    size_t free_after;
    RUNTIME(cudaMemGetInfo(&free_after, &total));
    step("cuMemRelease: %zu MiB were free at first, %zu MiB are now", free_before >> 20, free_after >> 20);
    printf("PASS\n");
    return 0;
}
