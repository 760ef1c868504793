// What every processor of the architecture has: SSE2 on x86-64, NEON on 64-bit ARM, plain arithmetic elsewhere.
#define ATTRACTOR_ISA baseline
#define ATTRACTOR_BYTES 16
#include "instruction_set.h"

namespace attractor {
extern const InstructionSet baseline_set;
const InstructionSet baseline_set = {"scalar",
                                     baseline::kernels_of<float>(),
                                     baseline::kernels_of<double>(),
                                     baseline::zonal_kernels(),
                                     baseline::loop_scratch,
                                     baseline::loop_member, baseline::gradient_scratch, baseline::gradient_member,
    baseline::noisy_scratch, baseline::noisy_member};
}  // namespace attractor
