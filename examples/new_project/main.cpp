// The program: millrace's commands with the model and the data of this project.
#include "model.h"

int main(int argc, char** argv) {
  return millrace::run_program(argc, argv, own());
}
