// What libcaffe2_nvrtc and LibTorch ask of the driver itself: one context. The rest is generated (stubs.py).
extern "C" {

int cuInit(unsigned) {
  return 0;
}
int cuCtxSetCurrent(void*) {
  return 0;
}
int cuCtxGetCurrent(void** context) {
  *context = reinterpret_cast<void*>(1);
  return 0;
}
int cuDeviceGet(int* device, int ordinal) {
  *device = ordinal;
  return 0;
}
int cuDevicePrimaryCtxRetain(void** context, int) {
  return cuCtxGetCurrent(context);
}
int cuDevicePrimaryCtxGetState(int, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return 0;
}
int cuGetErrorString(int, const char** text) {
  *text = "error of the stand-in's driver";
  return 0;
}
}
