/* Stands in for NVIDIA's management library where there is no GPU: one GPU with made values. */
typedef struct {
  unsigned long long total, free, used;
} Memory;
typedef struct {
  unsigned gpu, memory;
} Utilization;

int nvmlInit_v2(void) { return 0; }
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 1;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  static int only;
  *device = &only;
  return index == 0 ? 0 : 2;
}
int nvmlDeviceGetMemoryInfo(void* device, Memory* memory) {
  (void)device;
  memory->total = 80ull << 30;
  memory->used = 20ull << 30;
  memory->free = 60ull << 30;
  return 0;
}
int nvmlDeviceGetUtilizationRates(void* device, Utilization* now) {
  (void)device;
  now->gpu = 75;
  now->memory = 10;
  return 0;
}
int nvmlDeviceGetTemperature(void* device, int sensor, unsigned* degrees) {
  (void)device;
  *degrees = 51;
  return sensor;
}
int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
  (void)device;
  *milliwatts = 250500;
  return 0;
}
