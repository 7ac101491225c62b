// Barriers in shared memory that count arrivals, and bytes which copies in bulk bring: from sm_90 on.
#ifndef GANTRY_BARRIER_CUH
#define GANTRY_BARRIER_CUH

#include "../device/portable.h"

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900

namespace barrier {

// `count` arrivals and all bytes that were announced complete a phase.
DEVICE void barrier_start(uint barrier, uint count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
DEVICE void barrier_expect(uint barrier, uint bytes) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes) : "memory");
}
DEVICE void barrier_arrive(uint barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
// Waits for the end of the phase of this parity.
DEVICE void barrier_wait(uint barrier, uint parity) {
    asm volatile("{.reg .pred p; w: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n\t@!p bra w;}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
}
// Barriers that were started are seen by copies.
DEVICE void barriers_started() { asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory"); }

} // namespace barrier

#endif

#endif
