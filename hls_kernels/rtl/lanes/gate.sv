// silu(gate) * up of a row (`gated` of lane_functions.hpp). The gate goes to units of log2, its
// sigmoid is made of EXP and RECIP, and multiplies the product of gate and up.
module gate (
    input wire clk,
    input wire signed [31:0] gate_value,
    input wire signed [31:0] up_value,
    input wire [4:0] room_gate,
    input wire [4:0] room_up,
    input wire signed [31:0] mantissa,
    input wire signed [31:0] limit,
    input wire signed [31:0] half,
    input wire [4:0] right,
    input wire [4:0] left,
    input wire keep,
    output wire signed [31:0] out,
    output wire changed
);
    localparam BOTH = latency::SHIFT + latency::PRODUCT;  // gate times up
    localparam AT_EXP = latency::FIXED + 1;               // magnitude of z
    localparam AT_DOWN = AT_EXP + latency::EXPONENTIAL;
    localparam AT_RECIP = AT_DOWN + latency::SHIFT;
    localparam AT_SMALL = AT_RECIP + latency::RECIPROCAL;
    localparam AT_FACTOR = AT_SMALL + latency::DSP + 1;

    // ---- the sigmoid ----
    wire signed [31:0] z;
    wire changed_z;
    reg [31:0] magnitude;
    reg negative;
    wire [4:0] whole = magnitude[31:16] > 16'd31 ? 5'd31 : magnitude[20:16];
    wire signed [16:0] y, y_down, y_small, r, r_small;
    wire [4:0] whole_down, whole_factor;
    wire negative_factor;
    wire signed [47:0] small_48;
    reg signed [16:0] factor;
    reg [4:0] down;
    wire unused = |{small_48[47:32], small_48[14:0]};

    fixed to_log2 (
        .clk(clk),
        .value(gate_value),
        .mantissa(mantissa),
        .limit(limit),
        .half(half),
        .right(right),
        .left(left),
        .keep(keep),
        .out(z),
        .changed(changed_z)
    );
    always @(posedge clk) begin
        magnitude <= z < 0 ? -z : z;
        negative <= z < 0;
    end
    exponential exp (.clk(clk), .f(magnitude[15:0]), .out(y));
    delay #(.WIDTH(5), .DEPTH(latency::EXPONENTIAL)) to_down (
        .clk(clk), .in(whole), .out(whole_down));
    shift_right #(.WIDTH(17)) lower (.clk(clk), .value(y), .by(whole_down), .out(y_down));
    reciprocal recip (.clk(clk), .e(y_down), .out(r));

    delay #(.WIDTH(17), .DEPTH(AT_SMALL - AT_DOWN)) to_small (.clk(clk), .in(y), .out(y_small));
    dsp_product #(.A(17), .B(17)) small_gate (
        .clk(clk), .a(y_small), .b(r), .addend(48'd0), .result(small_48));
    delay #(.WIDTH(17), .DEPTH(latency::DSP)) beside_small (.clk(clk), .in(r), .out(r_small));
    delay #(.WIDTH(6), .DEPTH(AT_FACTOR - 1 - AT_EXP)) to_factor (
        .clk(clk), .in({whole, negative}), .out({whole_factor, negative_factor}));
    always @(posedge clk) begin
        factor <= negative_factor ? small_48[31:15] : r_small;
        down <= negative_factor ? whole_factor : 5'd0;
    end

    // ---- gate times up times the sigmoid ----
    wire signed [31:0] gate_full, up_full, both, both_factor, scaled;
    wire [4:0] down_align;

    shift_left widen_gate (.clk(clk), .value(gate_value), .by(room_gate), .out(gate_full));
    shift_left widen_up (.clk(clk), .value(up_value), .by(room_up), .out(up_full));
    product times_up (.clk(clk), .a(gate_full), .b(up_full), .out(both));
    delay #(.WIDTH(32), .DEPTH(AT_FACTOR - BOTH)) to_scale (
        .clk(clk), .in(both), .out(both_factor));
    narrow_product scale (.clk(clk), .a(both_factor), .b(factor), .out(scaled));
    delay #(.WIDTH(5), .DEPTH(latency::NARROW_PRODUCT)) to_align (
        .clk(clk), .in(down), .out(down_align));
    shift_right align (.clk(clk), .value(scaled), .by(down_align), .out(out));
    delay #(.WIDTH(1), .DEPTH(latency::GATE - latency::FIXED)) for_mark (
        .clk(clk), .in(changed_z), .out(changed));
endmodule
