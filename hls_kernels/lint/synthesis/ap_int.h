// ap_int as the lint sees it. AMD's open headers end with #error where __SYNTHESIS__ is defined, as
// the Vitis compiler brings its own; for them alone the macro is taken away. The kernel's own text
// is still read with it. Only the lint has this folder on its path.
#pragma once

#pragma push_macro("__SYNTHESIS__")
#undef __SYNTHESIS__
#include_next <ap_int.h>
#pragma pop_macro("__SYNTHESIS__")
