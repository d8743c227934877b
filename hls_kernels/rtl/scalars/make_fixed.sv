// How values of an exponent, times a row's scale, become fixed point (make_fixed): the shift and
// its clip. The mantissa is the scale's own.
module make_fixed (
    input wire clk,
    input wire signed [31:0] exponent,
    input wire signed [31:0] scale_exponent,
    input wire signed [31:0] fraction_bits,
    input wire [4:0] limit_bits,
    output reg signed [31:0] limit,  // four cycles later, as all
    output reg signed [31:0] half,
    output reg [4:0] right,
    output reg [4:0] left,
    output reg keep,
    output reg lost  // every value but 0 is clipped
);
    reg signed [31:0] sum, beside, by;
    wire [4:0] bits_2;
    reg [4:0] right_3, left_3, most_3;
    reg gone_3, lost_3, clips_3;

    // by = -(exponent + scale_exponent + fraction_bits + 32)
    delay #(.WIDTH(5), .DEPTH(2)) for_bits (.clk(clk), .in(limit_bits), .out(bits_2));
    always @(posedge clk) begin
        sum <= exponent + scale_exponent;
        beside <= fraction_bits + 32'sd31;
        by <= ~sum - beside;
    end

    wire to_left = by < 0;
    wire [4:0] distance = to_left ? 5'(-by) : by[4:0];
    always @(posedge clk) begin
        gone_3 <= by > 32'sd30;
        lost_3 <= by < -32'sd16;
        clips_3 <= to_left;
        right_3 <= to_left || by > 32'sd30 ? 5'd0 : distance;
        left_3 <= to_left && by >= -32'sd16 ? distance : 5'd0;
        most_3 <= bits_2 - distance;
    end

    always @(posedge clk) begin
        limit <= lost_3 ? 32'sd0
            : clips_3 ? $signed((32'd1 << most_3) - 32'd1) : 32'sd2147483647;
        half <= $signed((32'd1 << right_3) >> 1);
        right <= right_3;
        left <= left_3;
        keep <= ~gone_3;
        lost <= lost_3;
    end
endmodule
