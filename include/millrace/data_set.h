/// \file
/// Data sets: the interface, tensors in memory, those that --data names, and the loader.
#pragma once

#include "data/loading/dataset.h"
#include "data/loading/tensor_dataset.h"
#include "runtime/train/batch_source.h"
