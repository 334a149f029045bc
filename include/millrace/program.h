/// \file
/// The main of a program of one's own, with every flag of millrace's commands.
#pragma once

#include "driver/worker/program.h"
#include "driver/worker/worker_options.h"
