// AVX2 with fused multiply-add: x86-64 since about 2013.
#define ATTRACTOR_ISA avx2
#define ATTRACTOR_BYTES 32
#include "instruction_set.h"

namespace attractor {
extern const InstructionSet avx2_set;
const InstructionSet avx2_set = {
    "avx2",           avx2::kernels_of<float>(), avx2::kernels_of<double>(), avx2::zonal_kernels(), avx2::loop_scratch,
    avx2::loop_member, avx2::gradient_scratch, avx2::gradient_member,
    avx2::noisy_scratch, avx2::noisy_member};
}  // namespace attractor
