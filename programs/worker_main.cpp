// millrace-worker: the commands that compute, on the CPU. `millrace` hands them over.
#include "driver/worker/worker_options.h"

int main(int argc, char** argv) {
  return millrace::worker_program({argv + 1, argv + argc}, {});
}
