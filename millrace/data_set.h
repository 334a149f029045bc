/// \file
/// Data sets: the interface, tensors in memory, those that --data names, and the loader.
#pragma once

#include "data/dataset.h"
#include "data/tensor_dataset.h"
#include "runtime/train/batch_source.h"
