// The model of this project: what the program and the test share.
#pragma once

#include <millrace/millrace.h>

/// The model my-model with its options, and the data set `--data circles`.
millrace::Additions own();
