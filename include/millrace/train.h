/// \file
/// Training: what a run is told, a rank's trainer, all ranks of a plan as threads of one process, and the
/// trained model in use.
#pragma once

#include "runtime/base/clock.h"
#include "runtime/base/error.h"
#include "runtime/base/result.h"
#include "runtime/comm/communicator.h"
#include "runtime/device/device.h"
#include "runtime/rules/learning_rate.h"
#include "runtime/rules/update_options.h"
#include "runtime/train/local_training.h"
#include "runtime/train/predictor.h"
#include "runtime/train/train_options.h"
#include "runtime/train/trainer.h"
