// Cycles from operand to result of the parts that pipelines are made of, so that what runs beside a
// part can be delayed as long. A module's own latency is what the benches measure (qor.json).
package latency;
    localparam SHIFT = 2;
    localparam PRODUCT = 6;         // up to 35 x 35 bits, four DSPs
    localparam NARROW_PRODUCT = 4;  // up to 35 x 18 bits, two
    localparam DSP = 3;             // up to 27 x 18 bits, one
    localparam CLIP = 1;
    localparam ROUNDED_SHIFT = CLIP + 1 + 2 * SHIFT;
    localparam EXPONENTIAL = 4 * DSP;
    localparam RECIPROCAL = 5 * DSP;
    localparam DEQUANTISE = SHIFT + PRODUCT + SHIFT;
    localparam FIXED = PRODUCT + ROUNDED_SHIFT;
    localparam QUANTISE = SHIFT + DSP;
    localparam GATE = FIXED + 1 + EXPONENTIAL + SHIFT + RECIPROCAL + DSP + 1 + NARROW_PRODUCT + SHIFT;
    localparam NORM = SHIFT + PRODUCT;
    localparam ROTATE = SHIFT + DSP + 1;
    localparam RESIDUAL = 4;
    localparam FIRST_LOOK = DEQUANTISE + 1 + PRODUCT + 1 + ROUNDED_SHIFT + RESIDUAL + 1;
    localparam SECOND_LOOK = GATE + 1;
    localparam SQUARE = NORM + 1;  // of the second look
    localparam PEAK = 2;
    localparam MAX_TREE = 4;
    localparam OR_TREE = 2;
    localparam SUM_TREE = 4;
    localparam ROOM = 3;
    localparam NORMALISE = 6;
    localparam TIMES = PRODUCT + 1;
    localparam MAKE_FIXED = 4;
endpackage
