// Which scores a kernel instance computes. Host and device.
#pragma once

namespace tessera::cuda {

// plain: softmax(scale q k^T) under any band, scale positive. general: also softcap, bias or mask, ALiBi, any scale.
enum class ScoreKind { plain, general };

}  // namespace tessera::cuda
