// RMSNorm of a value: times its weight, and the 16-bit square for the row's mean.
module norm (
    input wire clk,
    input wire signed [31:0] value,
    input wire [4:0] room,
    input wire signed [31:0] weight,
    output wire signed [31:0] out,
    output wire [31:0] square
);
    wire signed [31:0] full, weight_2;
    reg signed [16:0] top;
    wire signed [47:0] square_48;
    wire unused = |square_48[47:32];

    shift_left widen (.clk(clk), .value(value), .by(room), .out(full));
    delay #(.WIDTH(32), .DEPTH(latency::SHIFT)) for_product (
        .clk(clk), .in(weight), .out(weight_2));
    product scale (.clk(clk), .a(full), .b(weight_2), .out(out));

    // ((full >> 15) + 1) >> 1
    always @(posedge clk) top <= 17'($signed(full[31:16])) + {16'd0, full[15]};
    dsp_product #(.A(17), .B(17)) squared (
        .clk(clk), .a(top), .b(top), .addend(48'd0), .result(square_48));
    delay #(.WIDTH(32), .DEPTH(latency::PRODUCT - 1 - latency::DSP)) for_square (
        .clk(clk), .in(square_48[31:0]), .out(square));
endmodule
