// Attention's score of a query and a key, in units of log2 with 12 fraction bits; alone and times
// the scale of the key's value.
module score (
    input wire clk,
    input wire signed [31:0] acc,
    input wire signed [31:0] key_mantissa,
    input wire signed [31:0] key_exponent,
    input wire signed [31:0] query_mantissa,
    input wire signed [31:0] base,  // -(query exponent + 67)
    input wire [14:0] value_mantissa,
    input wire signed [31:0] value_exponent,
    input wire live,                // the key is not beyond the query
    output reg signed [31:0] out,
    output reg signed [31:0] weighted,
    output reg changed
);
    localparam signed [31:0] MASKED = -(32'sd1 <<< 29);
    localparam signed [31:0] NONE = -(32'sd1 <<< 30);
    localparam AT_CLIP = 2 * latency::PRODUCT;
    localparam AT_LEFT = AT_CLIP + latency::CLIP;
    localparam AT_RIGHT = AT_LEFT + latency::SHIFT;
    localparam AT_MASK = AT_RIGHT + latency::SHIFT;

    // ---- how far, and what is clipped before ----
    reg signed [31:0] distance, limit;
    reg [4:0] left, right;
    wire [31:0] limit_clip;
    wire [4:0] left_shift, right_shift;

    always @(posedge clk) begin
        distance <= base - key_exponent;
        left <= distance >= 0 ? 5'd0 : distance < -32'sd16 ? 5'd16 : 5'(-distance);
        right <= distance < 0 ? 5'd0 : distance > 32'sd31 ? 5'd31 : distance[4:0];
        limit <= distance < -32'sd16 ? 32'sd0
            : 32'sd536870911 >>> (distance >= 0 ? 5'd0 : 5'(-distance));
    end
    delay #(.WIDTH(32), .DEPTH(AT_CLIP - 2)) for_clip (
        .clk(clk), .in(limit), .out(limit_clip));
    delay #(.WIDTH(5), .DEPTH(AT_LEFT - 2)) for_left (.clk(clk), .in(left), .out(left_shift));
    delay #(.WIDTH(5), .DEPTH(AT_RIGHT - 2)) for_right (
        .clk(clk), .in(right), .out(right_shift));

    // ---- the score ----
    wire signed [31:0] mantissa, acc_6, scaled, low, wide, shifted;
    wire changed_clip, changed_mask, live_mask;

    product scales (.clk(clk), .a(key_mantissa), .b(query_mantissa), .out(mantissa));
    delay #(.WIDTH(32), .DEPTH(latency::PRODUCT)) for_product (.clk(clk), .in(acc), .out(acc_6));
    wire signed [31:0] full = acc_6 <<< 9;
    product scale (.clk(clk), .a(full), .b(mantissa), .out(scaled));
    clip clipping (
        .clk(clk), .value(scaled), .limit(limit_clip), .out(low), .changed(changed_clip));
    shift_left to_left (.clk(clk), .value(low), .by(left_shift), .out(wide));
    shift_right to_right (.clk(clk), .value(wide), .by(right_shift), .out(shifted));

    // ---- keys beyond the query; the value's scale ----
    reg signed [31:0] masked;
    reg mark, used;
    wire signed [31:0] exponent_mask;
    wire [14:0] mantissa_mask;

    delay #(.WIDTH(1), .DEPTH(AT_MASK - AT_LEFT)) for_mark (
        .clk(clk), .in(changed_clip), .out(changed_mask));
    delay #(.WIDTH(16), .DEPTH(AT_MASK)) for_mask (
        .clk(clk), .in({live, value_mantissa}), .out({live_mask, mantissa_mask}));
    delay #(.WIDTH(32), .DEPTH(AT_MASK + 1)) for_exponent (
        .clk(clk), .in(value_exponent), .out(exponent_mask));
    always @(posedge clk) begin
        masked <= live_mask ? shifted : MASKED;
        mark <= live_mask & changed_mask;
        used <= live_mask && mantissa_mask != 0;
        out <= masked;
        weighted <= used ? masked + (exponent_mask <<< 12) : NONE;
        changed <= mark;
    end
endmodule
