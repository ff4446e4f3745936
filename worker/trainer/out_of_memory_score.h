// Which process the kernel ends when memory runs out.
//
// A preparation that ends costs nothing, a rank costs its job a restart or its end with the reason,
// and an agent costs every rank of its node: so processes of trainers offer themselves first.
// Without that the kernel may end the agent, too, while a rank that it has ended still holds its
// memory.
#pragma once

namespace tercio::trainer {

inline constexpr int kRankScore = 500;
inline constexpr int kPreparationScore = 1000;

// Sets this process's oom_score_adj (proc(5), -1000 to 1000). Where the kernel refuses, a warning
// is logged.
void SetOutOfMemoryScore(int score);

}  // namespace tercio::trainer
