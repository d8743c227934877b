// Attention's weight of a key, times its value's scale, as two codes of 7 bits; and the weight
// alone, for the sum of all.
module weight (
    input wire clk,
    input wire signed [31:0] ceiling,  // exponent of the largest weight, 12 fraction bits
    input wire signed [31:0] score,
    input wire signed [31:0] offset,   // 16 + exponent of the largest weight times scale - the same
    input wire [14:0] value_mantissa,
    input wire signed [31:0] value_exponent,
    input wire live,                   // the key is not beyond the query
    output reg signed [7:0] high_code,
    output reg signed [7:0] low_code,
    output reg signed [31:0] alone
);
    localparam AT_LEAST = 1 + latency::EXPONENTIAL;
    localparam AT_PRODUCT = AT_LEAST + 1;
    localparam AT_DOWN = AT_PRODUCT + latency::DSP;
    localparam AT_MASK = AT_DOWN + latency::SHIFT;

    // ---- the weight alone ----
    reg signed [31:0] z;
    wire signed [19:0] whole = z[31:12];
    wire [4:0] whole_31 = whole > 20'sd31 ? 5'd31 : whole[4:0];
    wire [4:0] whole_alone;
    wire signed [16:0] exp_y;
    reg [14:0] y;
    wire signed [31:0] alone_shifted, alone_mask;

    always @(posedge clk) z <= ceiling - score;
    exponential exp (.clk(clk), .f({z[11:0], 4'd0}), .out(exp_y));
    always @(posedge clk) y <= exp_y[15] ? 15'd32767 : exp_y[14:0];
    delay #(.WIDTH(5), .DEPTH(AT_PRODUCT - 1)) to_alone (
        .clk(clk), .in(whole_31), .out(whole_alone));
    shift_right lower_alone (
        .clk(clk), .value({9'd0, y, 8'd0}), .by(whole_alone), .out(alone_shifted));
    delay #(.WIDTH(32), .DEPTH(AT_MASK - AT_PRODUCT - latency::SHIFT)) for_alone (
        .clk(clk), .in(alone_shifted), .out(alone_mask));

    // ---- times the value's scale ----
    reg signed [31:0] above, far;
    wire [31:0] exponent_2, offset_1;
    wire [4:0] down = far < 0 ? 5'd0 : far > 32'sd30 ? 5'd30 : far[4:0];
    wire beyond = far > 32'sd30;
    reg [4:0] down_4;
    reg beyond_4;
    wire [4:0] down_half, down_shift;
    wire beyond_mask, live_mask;
    wire [14:0] mantissa_y;
    reg [29:0] half;
    wire signed [47:0] rounded;
    wire signed [31:0] moved;
    wire unused = |{exp_y[16], rounded[47:32], moved[31:15]};

    delay #(.WIDTH(32), .DEPTH(1)) to_offset (.clk(clk), .in(offset), .out(offset_1));
    delay #(.WIDTH(32), .DEPTH(2)) to_exponent (
        .clk(clk), .in(value_exponent), .out(exponent_2));
    always @(posedge clk) begin
        above <= offset_1 + 32'(whole);
        far <= above - exponent_2;
        down_4 <= down;
        beyond_4 <= beyond;
        half <= 30'((31'd1 << down_half) >> 1);
    end
    // The half is the DSP's addend, two cycles after its operands.
    delay #(.WIDTH(5), .DEPTH(AT_PRODUCT + 1 - 4)) to_half (
        .clk(clk), .in(down_4), .out(down_half));
    delay #(.WIDTH(15), .DEPTH(AT_PRODUCT)) to_product (
        .clk(clk), .in(value_mantissa), .out(mantissa_y));
    dsp_product #(.A(16), .B(16)) scale (
        .clk(clk),
        .a({1'b0, y}),
        .b({1'b0, mantissa_y}),
        .addend({18'd0, half}),
        .result(rounded)
    );
    delay #(.WIDTH(5), .DEPTH(AT_DOWN - 4)) to_down (.clk(clk), .in(down_4), .out(down_shift));
    shift_right lower (
        .clk(clk), .value(rounded[31:0]), .by(down_shift), .out(moved));

    delay #(.WIDTH(1), .DEPTH(AT_MASK - 4)) for_beyond (
        .clk(clk), .in(beyond_4), .out(beyond_mask));
    delay #(.WIDTH(1), .DEPTH(AT_MASK)) for_live (.clk(clk), .in(live), .out(live_mask));
    always @(posedge clk) begin
        high_code <= live_mask && !beyond_mask ? moved[14:7] : 8'd0;
        low_code <= live_mask && !beyond_mask ? {1'b0, moved[6:0]} : 8'd0;
        alone <= live_mask ? alone_mask : 32'sd0;
    end
endmodule
