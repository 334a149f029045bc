#pragma once

#include "runtime/train/training.h"

namespace millrace {

/// Connects the ranks of a training that send each other tensors: along the links of its schedules, between
/// the ends of ties, among the replicas of a stage. Evaluations, of `evaluation_chunk` microbatches at a
/// time, send only forward. Collective; requires the training's stages and sources. Throws PeerError.
void connect_ranks(Training& training, int evaluation_chunk);

}  // namespace millrace
