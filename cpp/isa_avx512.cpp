// AVX-512: F, DQ, BW and VL.
#define ATTRACTOR_ISA avx512
#define ATTRACTOR_BYTES 64
#include "instruction_set.h"

namespace attractor {
extern const InstructionSet avx512_set;
const InstructionSet avx512_set = {"avx512",
                                   avx512::kernels_of<float>(),
                                   avx512::kernels_of<double>(),
                                   avx512::zonal_kernels(),
                                   avx512::loop_scratch,
                                   avx512::loop_member, avx512::gradient_scratch, avx512::gradient_member,
    avx512::noisy_scratch, avx512::noisy_member};
}  // namespace attractor
