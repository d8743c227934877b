/* A stand-in for libnvidia-ml.so.1 whose truth is known.
 *
 * Power is a square wave of CLOCK_MONOTONIC, the energy counter its exact integral since time 0.
 * GPU i runs a quarter of a period times i behind GPU 0. The file named by ECORL_FAKE_NVML_CONTROL
 * is read at every call, one setting a line:
 *
 *   devices N          physical GPUs                      (2)
 *   base_mw P          power outside the duty share, mW   (100000)
 *   peak_mw P          power inside it, mW                (600000)
 *   period_ms T        period of the wave, ms             (200)
 *   duty D             share of the period at peak        (0.25)
 *   refresh_ms T       power is held for this long; 0: no (0)
 *   module_extra_mw P  what the module scope adds, mW     (50000)
 *   mig N              MIG instances on every GPU         (0)
 *   zero 1             every power reading is 0           (0)
 *   counter_mj N       the energy counter stands at N     (it counts)
 *   counter_factor X [GPU]  the energy counter says X times the truth, of one GPU or all (1)
 *   max_limit_mw P     highest power limit, mW            (700000)
 *   error CALL CODE [GPU]   CALL returns CODE, for one GPU or all; CALL with or without its _v2
 *   field ID SCOPE CODE     nvmlReturn of one field in one scope
 *   burn_us CALL A B C [GPU]  CALL keeps the processor busy for A us, in 9 of 100 calls B, in one C
 *   process PID BYTES       a process that computes on every GPU
 *   count_to FILE           every call of the four below adds a line with its name
 *   trace FILE              every call about a GPU adds a line with its name and the GPU's number
 *   limiter ID SHARE        field ID counts this share of the time, ns, since time 0
 *   memory_mw P             power of the memory scope, mW (as the GPU's)
 *   sm_mhz_at_peak N        SM clock while power is at its peak, MHz (1980, as elsewhere)
 *
 * Those are nvmlDeviceGetTotalEnergyConsumption, nvmlDeviceGetPowerUsage,
 * nvmlDeviceGetFieldValues and nvmlDeviceGetUtilizationRates.
 *
 * Without that variable the library refuses to start, as if it were not there: a process in which
 * some test has loaded it is a machine without NVML to every other test.
 *
 * Built with WITHOUT_ENERGY it lacks the energy counter, like a driver that is too old.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_GPUS 8
#define MAX_MIG 7
#define MAX_RULES 16

enum { OK = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, LIBRARY_NOT_FOUND = 12 };

typedef struct {
  int gpu;
  int mig; /* -1: the physical GPU */
} device_t;

typedef struct {
  uint32_t field, scope;
  int64_t timestamp, latency;
  uint32_t type;
  uint32_t status;
  union {
    double d;
    uint32_t u;
    uint64_t ull;
  } value;
} field_t;

typedef struct {
  char call[64];
  int code, gpu;
} error_rule_t;

typedef struct {
  uint32_t field, scope;
  int code;
} field_rule_t;

typedef struct {
  char call[64];
  double usual_s, slow_s, slowest_s;
  int gpu; /* -1: all */
} burn_rule_t;

typedef struct {
  uint32_t field;
  double share;
} limiter_rule_t;

typedef struct {
  int devices, mig, zero, n_errors, n_fields, n_burns;
  unsigned int max_limit_mw;
  unsigned long long counter_mj; /* 0: it counts */
  double counter_factor[MAX_GPUS];
  double base_mw, peak_mw, period_s, duty, refresh_s, module_extra_mw;
  error_rule_t errors[MAX_RULES];
  field_rule_t fields[MAX_RULES];
  burn_rule_t burns[MAX_RULES];
  char count_to[256], trace[256];
  int n_limiters, n_processes;
  unsigned int sm_mhz_at_peak;
  double memory_mw;
  limiter_rule_t limiters[MAX_RULES];
  unsigned int pids[MAX_RULES];
  unsigned long long bytes[MAX_RULES];
} control_t;

static device_t table[MAX_GPUS][MAX_MIG + 1];
static int users;

static double now_s(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static control_t load(void) {
  control_t c = {2, 0, 0, 0, 0, 0, 700000, 0, {1, 1, 1, 1, 1, 1, 1, 1}, 1e5, 6e5, 0.2, 0.25, 0.0, 5e4, {{{0}, 0, 0}}, {{0, 0, 0}}, {{{0}, 0, 0, 0, 0}}, {0}, {0}};
  const char *path = getenv("ECORL_FAKE_NVML_CONTROL");
  FILE *file = path ? fopen(path, "r") : NULL;
  char line[256], call[64];
  double number;
  int a, b, d;
  while (file && fgets(line, sizeof line, file)) {
    if (sscanf(line, "devices %d", &a) == 1) c.devices = a < MAX_GPUS ? a : MAX_GPUS;
    if (sscanf(line, "mig %d", &a) == 1) c.mig = a < MAX_MIG ? a : MAX_MIG;
    if (sscanf(line, "zero %d", &a) == 1) c.zero = a;
    sscanf(line, "counter_mj %llu", &c.counter_mj);
    a = sscanf(line, "counter_factor %lf %d", &number, &b);
    for (int gpu = 0; a >= 1 && gpu < MAX_GPUS; gpu++)
      if (a == 1 || gpu == b) c.counter_factor[gpu] = number;
    sscanf(line, "max_limit_mw %u", &c.max_limit_mw);
    if (sscanf(line, "base_mw %lf", &number) == 1) c.base_mw = number;
    if (sscanf(line, "peak_mw %lf", &number) == 1) c.peak_mw = number;
    if (sscanf(line, "period_ms %lf", &number) == 1) c.period_s = number / 1e3;
    if (sscanf(line, "duty %lf", &number) == 1) c.duty = number;
    if (sscanf(line, "refresh_ms %lf", &number) == 1) c.refresh_s = number / 1e3;
    if (sscanf(line, "module_extra_mw %lf", &number) == 1) c.module_extra_mw = number;
    a = sscanf(line, "error %63s %d %d", call, &b, &d);
    if (a >= 2 && c.n_errors < MAX_RULES) {
      error_rule_t *rule = &c.errors[c.n_errors++];
      strcpy(rule->call, call);
      rule->code = b;
      rule->gpu = a == 3 ? d : -1;
    }
    sscanf(line, "count_to %255s", c.count_to);
    sscanf(line, "trace %255s", c.trace);
    unsigned long long bytes;
    if (sscanf(line, "process %d %llu", &a, &bytes) == 2 && c.n_processes < MAX_RULES) {
      c.pids[c.n_processes] = (unsigned int)a;
      c.bytes[c.n_processes++] = bytes;
    }
    double us[3];
    a = sscanf(line, "burn_us %63s %lf %lf %lf %d", call, &us[0], &us[1], &us[2], &b);
    if (a >= 4 && c.n_burns < MAX_RULES) {
      burn_rule_t *rule = &c.burns[c.n_burns++];
      strcpy(rule->call, call);
      rule->usual_s = us[0] / 1e6, rule->slow_s = us[1] / 1e6, rule->slowest_s = us[2] / 1e6;
      rule->gpu = a == 5 ? b : -1;
    }
    if (sscanf(line, "limiter %d %lf", &a, &number) == 2 && c.n_limiters < MAX_RULES)
      c.limiters[c.n_limiters++] = (limiter_rule_t){(uint32_t)a, number};
    sscanf(line, "memory_mw %lf", &c.memory_mw);
    sscanf(line, "sm_mhz_at_peak %u", &c.sm_mhz_at_peak);
    if (sscanf(line, "field %d %d %d", &a, &b, &d) == 3 && c.n_fields < MAX_RULES)
      c.fields[c.n_fields++] = (field_rule_t){(uint32_t)a, (uint32_t)b, d};
  }
  if (file) fclose(file);
  return c;
}

/* Burns up to a share of what a call takes from its begin on: a half before the answer and all of
 * it behind, so that the answer is of the middle of the call. */
static void burn(const control_t *c, const char *call, int gpu, unsigned int number, double from_s,
                 double share) {
  for (int i = 0; i < c->n_burns; i++) {
    const burn_rule_t *rule = &c->burns[i];
    unsigned int rank = number * 61 % 100; /* 0 to 99, each once in 100 calls */
    if (strcmp(rule->call, call) || (rule->gpu >= 0 && rule->gpu != gpu)) continue;
    double whole_s = rank == 0 ? rule->slowest_s : rank < 10 ? rule->slow_s : rule->usual_s;
    while (now_s() < from_s + share * whole_s) continue;
  }
}

static void count(const control_t *c, const char *call) {
  FILE *file = c->count_to[0] ? fopen(c->count_to, "a") : NULL;
  if (!file) return;
  fprintf(file, "%s\n", call);
  fclose(file);
}

#define BURN(value_is_set)                                       \
  do {                                                           \
    static unsigned int number;                                  \
    number++;                                                    \
    count(&c, __func__);                                         \
    burn(&c, __func__, device->gpu, number, from_s, 0.5);        \
    value_is_set;                                                \
    burn(&c, __func__, device->gpu, number, from_s, 1.0);        \
  } while (0)

/* What a call must return before it does anything: an injected error, or UNINITIALIZED. */
static int gate(const control_t *c, const char *call, const device_t *device) {
  FILE *file = device && c->trace[0] ? fopen(c->trace, "a") : NULL;
  if (file) {
    fprintf(file, "%s %d\n", call, device->gpu);
    fclose(file);
  }
  for (int i = 0; i < c->n_errors; i++) {
    const error_rule_t *rule = &c->errors[i];
    int here = rule->gpu < 0 || (device && device->gpu == rule->gpu);
    size_t n = strlen(rule->call);
    if (here && strncmp(rule->call, call, n) == 0 && (!call[n] || strncmp(call + n, "_v", 2) == 0))
      return rule->code;
  }
  return users > 0 ? OK : UNINITIALIZED;
}

#define ENTER(device)                            \
  double from_s = now_s();                       \
  control_t c = load();                          \
  int status = gate(&c, __func__, device);       \
  (void)from_s;                                  \
  if (status != OK) return status

static double phase_s(const control_t *c, int gpu, double t) {
  t -= 0.25 * gpu * c->period_s;
  double n = t / c->period_s;
  return t - c->period_s * (double)(int64_t)n;
}

static double power_mw(const control_t *c, int gpu, double t) {
  if (c->zero) return 0.0;
  if (c->refresh_s > 0) t = c->refresh_s * (double)(int64_t)(t / c->refresh_s);
  return phase_s(c, gpu, t) < c->duty * c->period_s ? c->peak_mw : c->base_mw;
}

static double energy_mj(const control_t *c, int gpu, double t) {
  double high = c->duty * c->period_s, phase = phase_s(c, gpu, t);
  double whole = (t - 0.25 * gpu * c->period_s - phase) / c->period_s;
  double peak_s = whole * high + (phase < high ? phase : high);
  return c->base_mw * t + (c->peak_mw - c->base_mw) * peak_s;
}

static double counted_mj(const control_t *c, int gpu, double t) {
  return c->counter_factor[gpu] * energy_mj(c, gpu, t);
}

static double average_mw(const control_t *c, int gpu, double t) {
  return c->zero ? 0.0 : energy_mj(c, gpu, t) - energy_mj(c, gpu, t - 1.0);
}

int nvmlInitWithFlags(unsigned int flags) {
  (void)flags;
  if (!getenv("ECORL_FAKE_NVML_CONTROL")) return LIBRARY_NOT_FOUND;
  control_t c = load();
  users++;
  int status = gate(&c, __func__, NULL);
  if (status != OK) users--;
  return status;
}

int nvmlShutdown(void) {
  ENTER(NULL);
  users--;
  return OK;
}

const char *nvmlErrorString(int code) {
  static char text[32];
  snprintf(text, sizeof text, "fake error %d", code);
  return text;
}

int nvmlSystemGetDriverVersion(char *text, unsigned int n) {
  ENTER(NULL);
  snprintf(text, n, "999.0-fake");
  return OK;
}

int nvmlDeviceGetCount_v2(unsigned int *n) {
  ENTER(NULL);
  *n = (unsigned int)c.devices;
  return OK;
}

static device_t *entry(int gpu, int mig) {
  device_t *device = &table[gpu][mig + 1];
  device->gpu = gpu;
  device->mig = mig;
  return device;
}

static void uuid_of(const device_t *device, char *text, unsigned int n) {
  if (device->mig < 0)
    snprintf(text, n, "GPU-0000000%d-fake", device->gpu);
  else
    snprintf(text, n, "MIG-0000000%d-%d-fake", device->gpu, device->mig);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, device_t **device) {
  device_t asked = {(int)index, -1};
  ENTER(&asked);
  if ((int)index >= c.devices) return INVALID_ARGUMENT;
  *device = entry((int)index, -1);
  return OK;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, device_t **device) {
  char text[64];
  control_t c = load();
  for (int gpu = 0; gpu < c.devices; gpu++)
    for (int mig = -1; mig < c.mig; mig++) {
      device_t *candidate = entry(gpu, mig);
      uuid_of(candidate, text, sizeof text);
      if (strcmp(text, uuid)) continue;
      int status = gate(&c, __func__, candidate);
      if (status == OK) *device = candidate;
      return status;
    }
  return NOT_FOUND;
}

/* GPU i sits at 0000:0(i+1):00.0. */
int nvmlDeviceGetHandleByPciBusId_v2(const char *address, device_t **device) {
  unsigned int domain, bus, slot;
  control_t c = load();
  if (sscanf(address, "%x:%x:%x", &domain, &bus, &slot) != 3) return INVALID_ARGUMENT;
  if (domain || slot || bus < 1 || (int)bus > c.devices) return NOT_FOUND;
  int status = gate(&c, __func__, entry((int)bus - 1, -1));
  if (status == OK) *device = entry((int)bus - 1, -1);
  return status;
}

int nvmlDeviceGetUUID(device_t *device, char *text, unsigned int n) {
  ENTER(device);
  uuid_of(device, text, n);
  return OK;
}

int nvmlDeviceGetName(device_t *device, char *text, unsigned int n) {
  ENTER(device);
  snprintf(text, n, "Fake GPU %d", device->gpu);
  return OK;
}

#ifndef WITHOUT_ENERGY
int nvmlDeviceGetTotalEnergyConsumption(device_t *device, unsigned long long *mj) {
  ENTER(device);
  BURN(*mj = c.counter_mj ? c.counter_mj : (unsigned long long)counted_mj(&c, device->gpu, now_s()));
  return OK;
}
#endif

int nvmlDeviceGetPowerUsage(device_t *device, unsigned int *mw) {
  ENTER(device);
  BURN(*mw = (unsigned int)average_mw(&c, device->gpu, now_s()));
  return OK;
}

/* Power limits, the energy counter and the limiters' counters; they answer unless told not to. */
static void other_field(const control_t *c, int gpu, double t, field_t *value) {
  const uint32_t limits_mw[] = {200000, c->max_limit_mw, 700000, 600000}; /* fields 187 to 190 */
  int answers = 1;
  if (value->field >= 187 && value->field <= 190) {
    value->value.u = limits_mw[value->field - 187];
  } else if (value->field == 191) {
    value->type = 3;
    value->value.ull = (uint64_t)counted_mj(c, gpu, t);
  } else if (value->field == 192) {
    value->value.u = 650000;
  } else {
    answers = 0;
    for (int k = 0; k < c->n_limiters; k++) {
      if (c->limiters[k].field != value->field) continue;
      value->type = 3;
      value->value.ull = (uint64_t)(1e9 * c->limiters[k].share * t);
      answers = 1;
    }
  }
  if (answers && value->status == NOT_SUPPORTED) value->status = OK;
  for (int k = 0; k < c->n_fields; k++)
    if (c->fields[k].field == value->field && c->fields[k].scope == 0)
      value->status = (uint32_t)c->fields[k].code;
}

int nvmlDeviceGetFieldValues(device_t *device, int n, field_t *values) {
  ENTER(device);
  double t;
  BURN(t = now_s());
  for (int i = 0; i < n; i++) {
    field_t *value = &values[i];
    value->type = 1;
    value->status = value->field == 185 || value->field == 186 ? OK : NOT_SUPPORTED;
    for (int k = 0; k < c.n_fields; k++)
      if (c.fields[k].field == value->field && c.fields[k].scope == value->scope)
        value->status = (uint32_t)c.fields[k].code;
    double mw = value->field == 186 ? power_mw(&c, device->gpu, t) : average_mw(&c, device->gpu, t);
    value->value.u = (uint32_t)(mw + (value->scope == 1 && mw > 0 ? c.module_extra_mw : 0.0));
    if (value->scope == 2 && c.memory_mw > 0) value->value.u = (uint32_t)c.memory_mw;
    if (value->scope == 0) other_field(&c, device->gpu, t, value);
  }
  return OK;
}

int nvmlDeviceGetUtilizationRates(device_t *device, unsigned int *gpu_and_memory) {
  ENTER(device);
  if (c.mig) return NOT_SUPPORTED;
  BURN(gpu_and_memory[0] = (unsigned int)(100.0 * c.duty));
  gpu_and_memory[1] = 0;
  return OK;
}

int nvmlDeviceGetClockInfo(device_t *device, int domain, unsigned int *mhz) {
  ENTER(device);
  *mhz = domain == 2 ? 2619 : 1980;
  if (domain < 2 && c.sm_mhz_at_peak && power_mw(&c, device->gpu, now_s()) >= c.peak_mw)
    *mhz = c.sm_mhz_at_peak;
  return OK;
}

int nvmlDeviceGetTemperature(device_t *device, int sensor, unsigned int *celsius) {
  ENTER(device);
  if (sensor != 0) return INVALID_ARGUMENT;
  *celsius = 41;
  return OK;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(device_t *device, unsigned long long *reasons) {
  ENTER(device);
  *reasons = 0x4;
  return OK;
}

int nvmlDeviceGetPowerManagementLimit(device_t *device, unsigned int *mw) {
  ENTER(device);
  *mw = 650000;
  return OK;
}

int nvmlDeviceGetEnforcedPowerLimit(device_t *device, unsigned int *mw) {
  ENTER(device);
  *mw = 600000;
  return OK;
}

int nvmlDeviceGetPowerManagementLimitConstraints(device_t *device, unsigned int *low,
                                                 unsigned int *high) {
  ENTER(device);
  *low = 200000;
  *high = c.max_limit_mw;
  return OK;
}

int nvmlDeviceGetPowerManagementDefaultLimit(device_t *device, unsigned int *mw) {
  ENTER(device);
  *mw = 700000;
  return OK;
}

int nvmlSystemGetNVMLVersion(char *text, unsigned int n) {
  ENTER(NULL);
  snprintf(text, n, "13.999.0-fake");
  return OK;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
  ENTER(NULL);
  *version = 13000;
  return OK;
}

int nvmlDeviceGetMemoryInfo(device_t *device, unsigned long long *total_free_used) {
  ENTER(device);
  total_free_used[0] = 80ull << 30;
  total_free_used[1] = 79ull << 30;
  total_free_used[2] = 1ull << 30;
  return OK;
}

int nvmlDeviceGetPersistenceMode(device_t *device, int *mode) {
  ENTER(device);
  *mode = 1;
  return OK;
}

int nvmlDeviceGetAPIRestriction(device_t *device, int api, int *is_restricted) {
  ENTER(device);
  if (api != 0) return NOT_SUPPORTED;
  *is_restricted = 1;
  return OK;
}

int nvmlDeviceGetMaxClockInfo(device_t *device, int domain, unsigned int *mhz) {
  ENTER(device);
  *mhz = domain == 2 ? 2619 : 1980;
  return OK;
}

int nvmlDeviceGetDefaultApplicationsClock(device_t *device, int domain, unsigned int *mhz) {
  ENTER(device);
  *mhz = domain == 2 ? 2619 : 1785;
  return OK;
}

int nvmlDeviceGetSupportedMemoryClocks(device_t *device, unsigned int *n, unsigned int *mhz) {
  ENTER(device);
  if (!mhz) return *n = 2, INSUFFICIENT_SIZE;
  mhz[0] = 2619, mhz[1] = 1593;
  return OK;
}

/* From 1980 down to 210 MHz by 15. */
int nvmlDeviceGetSupportedGraphicsClocks(device_t *device, unsigned int memory_mhz, unsigned int *n,
                                         unsigned int *mhz) {
  ENTER(device);
  if (memory_mhz != 2619) return NOT_FOUND;
  if (!mhz) return *n = 119, INSUFFICIENT_SIZE;
  for (unsigned int i = 0; i < *n; i++) mhz[i] = 1980 - 15 * i;
  return OK;
}

int nvmlDeviceGetMigMode(device_t *device, unsigned int *current, unsigned int *pending) {
  ENTER(device);
  *current = *pending = c.mig > 0;
  return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(device_t *device, unsigned int *n) {
  ENTER(device);
  *n = MAX_MIG;
  return OK;
}

int nvmlDeviceGetMigDeviceHandleByIndex(device_t *device, unsigned int index, device_t **instance) {
  ENTER(device);
  if ((int)index >= c.mig) return NOT_FOUND;
  *instance = entry(device->gpu, (int)index);
  return OK;
}

int nvmlDeviceGetDeviceHandleFromMigDeviceHandle(device_t *instance, device_t **parent) {
  ENTER(instance);
  if (instance->mig < 0) return INVALID_ARGUMENT;
  *parent = entry(instance->gpu, -1);
  return OK;
}

typedef struct {
  unsigned int pid;
  unsigned long long bytes;
  unsigned int gpu_instance, compute_instance;
} process_t;

int nvmlDeviceGetComputeRunningProcesses_v3(device_t *device, unsigned int *n, process_t *found) {
  ENTER(device);
  unsigned int room = *n;
  *n = (unsigned int)c.n_processes;
  if (room < *n) return INSUFFICIENT_SIZE;
  for (unsigned int i = 0; i < *n; i++) found[i] = (process_t){c.pids[i], c.bytes[i], ~0u, ~0u};
  return OK;
}
